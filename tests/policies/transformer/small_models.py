"""Small transformers with ragged prompts, and a forward pass written again for one response, one token and one head."""

import math

import torch

from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy

V, T = 7, 5
DENSE = TransformerConfig(vocab_size=V, width=16, layers=2, heads=2, hidden=12)
MIXTURE = TransformerConfig(vocab_size=V, width=16, layers=2, heads=2, hidden=8, experts=8)
GROUPED = TransformerConfig(vocab_size=V, width=16, layers=2, heads=4, key_heads=2, hidden=12)
CONFIGS = {"dense": DENSE, "mixture": MIXTURE, "grouped": GROUPED}
PROMPTS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0], [6, 1, 2, 0], [3, 0, 0, 0]])
LENGTHS = torch.tensor([4, 2, 0, 3, 1])


def model_of(kind, dtype=torch.float64):
    return Transformer.random(CONFIGS[kind], seed=3, dtype=dtype, sharpness=2.0)


def policy_of(kind, **numerics):
    return TransformerPolicy(model_of(kind), PROMPTS, LENGTHS, Numerics(**numerics))


def responses(rows, generator, length=T):
    return torch.randint(V, (rows, length), generator=generator), torch.randint(5, (rows,), generator=generator)


def plain_laws(model, context):
    """Log law after every prefix of one context (a list of ids), with loops over tokens, heads and experts."""
    c, w = model.config, {name: x.detach() for name, x in model.weights.items()}
    half = c.head_width // 2

    def norm(x, scale):
        return scale * x / (x.square().mean() + c.epsilon).sqrt()

    def turn(x, position):  # pairs (i, i + half) as complex numbers
        angles = [position * c.rope_base ** (-2 * i / c.head_width) for i in range(half)]
        angle = torch.tensor(angles, dtype=torch.float64)
        z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag])

    def unit(x, gate, up, down):
        inner = gate @ x
        return down @ (inner * torch.sigmoid(inner) * (up @ x))

    stream = [w["embedding"][token] for token in context]
    for layer in range(c.layers):
        at = f"layer{layer}."
        normed = [norm(x, w[at + "attention_norm"]) for x in stream]
        mixed = [torch.zeros(c.width).double() for _ in stream]
        for head in range(c.heads):
            cut = slice(head * c.head_width, (head + 1) * c.head_width)
            read = head * c.kept_heads // c.heads  # queries that share a head of keys stand side by side
            kept = slice(read * c.head_width, (read + 1) * c.head_width)
            key = [turn((w[at + "key"] @ x)[kept], s) for s, x in enumerate(normed)]
            value = [(w[at + "value"] @ x)[kept] for x in normed]
            for t, x in enumerate(normed):
                query = turn((w[at + "query"] @ x)[cut], t)
                score = torch.stack([query @ key[s] for s in range(t + 1)]) / math.sqrt(c.head_width)
                share = (score - score.max()).exp()
                mixed[t][cut] = sum(share[s] / share.sum() * value[s] for s in range(t + 1))
        stream = [x + w[at + "output"] @ m for x, m in zip(stream, mixed, strict=True)]
        for t, x in enumerate(stream):
            y = norm(x, w[at + "feed_forward_norm"])
            if c.experts:
                affinity = w[at + "router"] @ y
                best = sorted(range(c.experts), key=lambda e: -float(affinity[e]))[: c.experts_per_token]
                share = torch.softmax(affinity[best], 0)
                add = sum(
                    a * unit(y, *(w[at + n][e] for n in ("gate", "up", "down")))
                    for a, e in zip(share, best, strict=True)
                )
            else:
                add = unit(y, *(w[at + n] for n in ("gate", "up", "down")))
            stream[t] = x + add
    return torch.stack([torch.log_softmax(w["head"] @ norm(x, w["final_norm"]), 0) for x in stream])
