"""One gradient per response: the weighted score of every row in the flat parameter vector."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import TooLarge
from testbed.policies.transformer.forward import full_place, next_token_laws, residual_stream
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.numerics import Numerics, prepared

MOST_NUMBERS = 2**27  # of one answer: 1 GiB in float64
AT_ONCE = 2**22  # numbers of per-row gradients held while they are computed


def response_gradients(
    model: Transformer,
    numerics: Numerics,
    context: Int64[Tensor, "B S"],
    first: Int64[Tensor, " B"],
    tokens: Int64[Tensor, "B T"],
    coefficient: Float[Tensor, "B T"],
    replayed: Int64[Tensor, "B S L k"] | None = None,
) -> Float[Tensor, "B P"]:
    """sum_t c_bt grad log pi(y_bt | h_bt), one row per response.

    Parameters
    ----------
    model, numerics : weights and the arithmetic of the forward pass
    context : Int64[Tensor, "B S"]       start, prompt and response but for its last token, packed from the left
    first : Int64[Tensor, " B"]          slot whose law gives the first response token
    tokens, coefficient : [B, T]         drawn tokens and what multiplies their scores
    replayed : experts to use, or None

    Returns
    -------
    Float64[Tensor, "B P"]               in the order of `model.vector()`

    Raises
    ------
    TooLarge   more than 2^27 numbers
    """
    weights = {name: w.detach() for name, w in model.weights.items()}
    rows, size = tokens.shape[0], model.parameter_count
    if rows * size > MOST_NUMBERS:
        raise TooLarge(
            f"gradients per response may hold up to {MOST_NUMBERS:,} numbers",
            found=f"{rows} responses x {size} parameters",
            hint="take fewer responses at a time, or differentiate their weighted sum through `score`",
        )
    steps = torch.arange(tokens.shape[1], device=tokens.device)

    def weighted_score(weights, context, first, tokens, coefficient, replayed):
        held = prepared(weights, numerics)
        place = full_place(1, context.shape[0], context.device)
        forced = None if replayed is None else replayed[None]
        x, _ = residual_stream(context[None], held, place, model.config, numerics, forced)
        laws = next_token_laws(x[0][first + steps], held, model.config, numerics)
        return (coefficient * laws.gather(-1, tokens[:, None])[:, 0]).sum()

    in_dims = (None, 0, 0, 0, 0, None if replayed is None else 0)
    per_row = torch.func.vmap(torch.func.grad(weighted_score), in_dims)
    count = max(1, AT_ONCE // size)
    out = torch.empty(rows, size, dtype=torch.float64, device=tokens.device)
    for start in range(0, rows, count):
        part = slice(start, start + count)
        forced = None if replayed is None else replayed[part]
        gradients = per_row(weights, context[part], first[part], tokens[part], coefficient[part], forced)
        out[part] = torch.cat([gradients[name].flatten(1) for name in weights], 1)
    return out
