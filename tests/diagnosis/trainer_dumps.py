"""The same responses as each trainer would dump them, made from the formats' documentation, and what must be read back."""

from __future__ import annotations

import json

import numpy as np

LENGTHS = (5, 3, 1, 4, 5, 2)  # of completions
PROMPT = (3, 3, 2, 2, 4, 4)  # lengths of prompts; pairs of responses share one
CONTENT, WIDTH = 4, 6


def truth(rng):
    """Responses as lists: tokens, three policies' log-probs, versions, reward, prompt."""
    rows = []
    for i, (n, m) in enumerate(zip(LENGTHS, PROMPT, strict=True)):
        rows.append(
            {
                "prompt": [100 + 10 * (i // 2) + k for k in range(m)],
                "token": rng.integers(1, 90, n).tolist(),
                "behavior": -rng.exponential(1.0, n),
                "trainer": -rng.exponential(1.0, n),
                "target": -rng.exponential(1.0, n),
                "version": np.sort(rng.integers(5, 8, n)),
                "reward": float(rng.normal()),
            }
        )
    return rows


def padded(rows, width, fill=0.0, left=False):
    """Rectangular array of ragged rows."""
    rows = [np.asarray(row) for row in rows]
    out = np.full((len(rows), width), fill, dtype=np.result_type(*rows))
    for i, row in enumerate(rows):
        out[i, width - len(row) if left else 0 : width if left else len(row)] = row
    return out


def verl(rows):
    """Arrays [B, R]; garbage in padding, as trainers leave it."""
    scores = [np.r_[np.zeros(len(row["token"]) - 1), row["reward"]] for row in rows]
    return {
        "rollout_log_probs": padded([r["behavior"] for r in rows], WIDTH, -1.0),
        "old_log_probs": padded([r["trainer"] for r in rows], WIDTH, 3.0),
        "log_probs": padded([r["target"] for r in rows], WIDTH, np.nan),
        "response_mask": padded([np.ones(len(r["token"]), dtype=np.int64) for r in rows], WIDTH, 0),
        "token_level_scores": padded(scores, WIDTH),
        "responses": padded([r["token"] for r in rows], WIDTH, 0),
        "uid": np.array([f"u{i // 2}" for i in range(len(rows))]),
        "min_global_steps": np.array([7] * len(rows)),
        "max_global_steps": np.array([7] * len(rows)),
    }


def trl(rows):
    """Arrays [B, C]; prompts padded on the left."""
    return {
        "sampling_per_token_logps": padded([r["behavior"] for r in rows], WIDTH),
        "old_per_token_logps": padded([r["trainer"] for r in rows], WIDTH, -9.0),
        "log_probs": padded([r["target"] for r in rows], WIDTH),
        "completion_mask": padded([np.ones(len(r["token"]), dtype=np.int64) for r in rows], WIDTH, 0),
        "completion_ids": padded([r["token"] for r in rows], WIDTH, 0),
        "prompt_ids": padded([r["prompt"] for r in rows], CONTENT, 0, left=True),
        "advantages": np.array([r["reward"] for r in rows]),
    }


def areal(rows, *, rolled=False):
    """Arrays [B, L] over prompt and completion; forward passes speak of the next token, the engine of its own."""
    width = CONTENT + WIDTH
    ones = [np.r_[np.zeros(len(r["prompt"]), dtype=np.int64), np.ones(len(r["token"]), dtype=np.int64)] for r in rows]
    behavior = padded([np.r_[np.zeros(len(r["prompt"])), r["behavior"]] for r in rows], width)
    mask = padded(ones, width, 0)
    out = {
        "input_ids": padded([r["prompt"] + r["token"] for r in rows], width, 0),
        "logprobs": np.roll(behavior, -1, 1) if rolled else behavior,
        "loss_mask": np.roll(mask, -1, 1).astype(float) if rolled else mask,
        "versions": padded([np.r_[[-1] * len(r["prompt"]), r["version"]] for r in rows], width, -1),
        "rewards": np.array([r["reward"] for r in rows]),
        "attention_mask": padded([np.ones(len(one), dtype=np.int64) for one in ones], width, 0) > 0,
    }
    for name, policy in (("prox_logp", "trainer"), ("theta", "target")):
        out[name] = np.roll(padded([np.r_[np.full(len(r["prompt"]), -4.0), r[policy]] for r in rows], width), -1, 1)
    return out | ({"advantages": np.zeros((len(rows), width))} if rolled else {})


def openrlhf(rows):
    """Arrays [B, A] with A = T - 1: place a speaks of token a + 1."""
    width = CONTENT + WIDTH

    def actions(values, fill=0.0):
        return padded([np.r_[np.zeros(len(r["prompt"])), r[values]] for r in rows], width, fill)[:, 1:]

    mask = padded([np.r_[np.zeros(len(r["prompt"])), np.ones(len(r["token"]))] for r in rows], width, 0.0)[:, 1:]
    return {
        "sequences": padded([r["prompt"] + r["token"] for r in rows], width, 0),
        "rollout_log_probs": actions("behavior"),
        "action_log_probs": actions("trainer"),
        "log_probs": actions("target"),
        "action_mask": mask > 0,
        "rewards": np.array([r["reward"] for r in rows]),
    }


MAKERS = {"verl": verl, "trl": trl, "areal": areal, "openrlhf": openrlhf}
TARGETS = {"verl": "log_probs", "trl": "log_probs", "areal": "theta", "openrlhf": "log_probs"}


def write(path, arrays):
    """Write arrays in the format of the path's suffix."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix in (".pt", ".pth"):
        import torch

        plain = {k: v.tolist() if v.dtype.kind == "U" else torch.from_numpy(v) for k, v in arrays.items()}
        torch.save(plain, path)
    else:
        rows = [{k: v[i].tolist() for k, v in arrays.items()} for i in range(len(LENGTHS))]
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.Table.from_pylist(rows), path)
    return path
