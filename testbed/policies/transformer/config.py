"""The shape of a transformer: how many layers, heads and experts, and how wide they are."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes of a causal decoder with rotary positions, RMS normalization and gated feed-forward layers.

    Parameters
    ----------
    vocab_size : int          V; the input vocabulary has one more id, V itself, which starts every context
    width : int               residual stream, a multiple of 2 * heads
    layers, heads : int
    key_heads : int | None    heads of keys and values, a divisor of heads, each shared by heads / key_heads queries; None = heads
    hidden : int              inner width of a feed-forward layer, or of each expert
    experts : int             0 = dense; otherwise experts per layer
    experts_per_token : int   experts that act on a token (ignored when dense)
    context : int             longest context: start, prompt and response
    rope_base : float         base of the rotary frequencies
    epsilon : float           added to mean squares

    Raises
    ------
    InputError   sizes below 1, a head width that is odd or no integer, key heads that do not divide the heads, more experts per
                 token than experts

    Examples
    --------
    >>> TransformerConfig(vocab_size=14).parameter_count()
    21568
    >>> TransformerConfig(vocab_size=14, experts=8).parameter_count()
    108096
    """

    vocab_size: int
    width: int = 32
    layers: int = 2
    heads: int = 4
    hidden: int = 64
    experts: int = 0
    experts_per_token: int = 2
    context: int = 128
    rope_base: float = 10_000.0
    epsilon: float = 1e-6
    key_heads: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads", "hidden", "experts_per_token", "context"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be >= 1", found=getattr(self, name))
        if self.width % (2 * self.heads):
            raise InputError("`width` must be a multiple of 2 * heads", found=f"{self.width} for {self.heads} heads")
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise InputError(f"`key_heads` must divide the {self.heads} heads", found=self.key_heads)
        if self.experts < 0 or 0 < self.experts < self.experts_per_token:
            raise InputError(f"`experts` must be 0 or at least {self.experts_per_token}", found=self.experts)
        if not (self.rope_base > 0 and self.epsilon > 0):
            raise InputError("`rope_base` and `epsilon` must be > 0", found=f"{self.rope_base}, {self.epsilon}")

    @property
    def kept_heads(self) -> int:
        """Heads whose keys and values a cache keeps."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, in the order of the flat parameter vector; the last axis is the one summed over."""
        d, f, e = self.width, self.hidden, self.experts
        kept = self.kept_heads * self.head_width
        out: dict[str, tuple[int, ...]] = {"embedding": (self.vocab_size + 1, d)}
        for layer in range(self.layers):
            at = f"layer{layer}."
            out |= {at + "attention_norm": (d,)}
            rows = {"query": d, "key": kept, "value": kept, "output": d}
            out |= {at + name: (count, d) for name, count in rows.items()}
            out |= {at + "feed_forward_norm": (d,)}
            if e:
                out |= {at + "router": (e, d), at + "gate": (e, f, d), at + "up": (e, f, d), at + "down": (e, d, f)}
            else:
                out |= {at + "gate": (f, d), at + "up": (f, d), at + "down": (d, f)}
        return out | {"final_norm": (d,), "head": (self.vocab_size, d)}

    def parameter_count(self) -> int:
        """Length of the flat parameter vector."""
        total = 0
        for shape in self.shapes().values():
            size = 1
            for length in shape:
                size *= length
            total += size
        return total
