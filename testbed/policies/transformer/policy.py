"""A transformer as a policy: exact prompts, laws from one full forward pass, gradients per response, a caching decoder.

One policy has two ways to the same law. `log_probs` is the trainer's: one pass over the whole response. `decoder` is the
sampler's: one token at a time against cached keys and values. They differ by rounding, which `Numerics` decides;
`reduction="fixed"` makes them equal bit for bit.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.policies.base import Policy
from testbed.policies.transformer.decoder import CachedDecoder
from testbed.policies.transformer.forward import full_place, next_token_laws, residual_stream
from testbed.policies.transformer.held_weights import HeldWeights
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.numerics import Numerics, prepared
from testbed.policies.transformer.prompts import Prompts, checked_prompts
from testbed.policies.transformer.response_gradients import response_gradients
from testbed.policies.transformer.routing import Routes

TOKENS_AT_ONCE = 2**14  # of a pass without a graph


class TransformerPolicy(Policy):
    """Next-token laws of a transformer after a prompt.

    Parameters
    ----------
    model : Transformer                      the weights; an optimizer may change them in place
    prompts : Int64[Tensor, "G L"] | None    prompt of each group; None = one empty prompt
    lengths : Int64[Tensor, " G"] | None     prompt lengths (None: all L); what lies beyond a length is ignored
    numerics : Numerics | None               the engine's arithmetic (None: float64, the library's kernels)

    Raises
    ------
    InputError   bad prompts; responses longer than the context; several prompts and no `at(group)`

    Examples
    --------
    >>> from testbed.policies.transformer.config import TransformerConfig
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0))
    >>> pi.log_probs(torch.tensor([[0, 1, 2]])).exp().sum(-1)
    tensor([[1.0000, 1.0000, 1.0000]], dtype=torch.float64, grad_fn=<SumBackward1>)
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Tensor | None = None,
        lengths: Tensor | None = None,
        numerics: Numerics | None = None,
    ) -> None:
        self.model, self.numerics = model, numerics or Numerics()
        self.config, self.vocab_size = model.config, model.config.vocab_size
        self.prompts = checked_prompts(self.vocab_size, prompts, lengths).to(model.device)
        self.prompted = prompts is not None
        self.group: Tensor | None = None  # the prompt of each row, once conditioned
        self.replayed: Routes | None = None
        self.opened: list[CachedDecoder] | None = None  # decoders, if they are kept
        self._held = HeldWeights()

    # ------------------------------------------------------------------------------------------- conditioning
    def at(self, group: Int64[Tensor, " B"]) -> TransformerPolicy:
        """Condition on a prompt per row; the result is asked about exactly these rows, in this order.

        Raises
        ------
        InputError   a prompt that does not exist, or a policy already conditioned on others
        """
        if not self.prompted:
            return self
        if self.group is not None:
            if not torch.equal(self.group, group):
                raise InputError("a policy is conditioned on its prompts once", found="other prompts the second time")
            return self
        out = copy.copy(self)
        out.prompts, out.group = self.prompts.of(group), group.clone()
        return out

    def under(self, numerics: Numerics) -> TransformerPolicy:
        """Return the same weights and prompts in an engine of other arithmetic."""
        out = copy.copy(self)
        out.numerics, out._held = numerics, HeldWeights()
        return out

    def replaying(self, routes: Routes) -> TransformerPolicy:
        """Use recorded experts in place of the router's own choice (routing replay), row by row.

        Raises
        ------
        InputError   for a dense model
        """
        if not self.config.experts:
            raise InputError("routing replay needs a mixture of experts", found="a dense model")
        out = self.under(self.numerics.but(router="replayed", router_noise=0.0))
        out.replayed = routes
        return out

    def decoder(self, group: Int64[Tensor, " B"]) -> CachedDecoder:
        """Open a decoder on the weights as they are now."""
        decoder = CachedDecoder(self.at(group), group)
        if self.opened is not None:
            self.opened.append(decoder)
        return decoder

    def recording(self) -> TransformerPolicy:
        """Return the same policy that keeps the decoders it opens in `opened`, so that their routes can be read."""
        out = copy.copy(self)
        out.opened = []
        return out

    def weights(self) -> dict[str, Tensor]:
        """Weights as this engine holds them; with a graph if gradients are on, else kept until the model's change."""
        if torch.is_grad_enabled() and any(w.requires_grad for w in self.model.weights.values()):
            return prepared(self.model.weights, self.numerics)
        return self._held.of(self.model.weights, self.numerics)

    # ------------------------------------------------------------------------------------------- laws
    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the next token, from a pass over the whole prefix."""
        return self._laws(prefix, prefix.shape[1])[0][:, 0]

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position, from one pass over the whole response."""
        if tokens.shape[1] == 0:
            return torch.zeros(*tokens.shape, self.vocab_size, dtype=torch.float64, device=tokens.device)
        return self._laws(tokens[:, :-1], 0)[0]

    def hidden_states(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """Residual stream after the last layer from which the law of each position is read."""
        if tokens.shape[1] == 0:
            return torch.zeros(*tokens.shape, self.config.width, dtype=self.numerics.format, device=tokens.device)
        return self._laws(tokens[:, :-1], 0, read=False)[0]

    def routes(self, tokens: Int64[Tensor, "B T"]) -> Routes:
        """Experts that act in each layer on each token of the context, in a full forward pass.

        Raises
        ------
        InputError   for a dense model
        """
        if not self.config.experts:
            raise InputError("routes need a mixture of experts", found="a dense model")
        with torch.no_grad():
            chosen = self._laws(tokens[:, : max(0, tokens.shape[1] - 1)], 0)[1]
        assert chosen is not None
        return Routes(chosen, self.rows(tokens.shape[0]).lengths - 1)

    def rows(self, batch: int) -> Prompts:
        """Start and prompt of each of `batch` rows.

        Raises
        ------
        InputError   several prompts and no `at(group)`, or `at` another number of rows
        """
        if self.group is None:
            if self.prompts.count > 1:
                raise InputError(
                    "a policy with several prompts must be told which row answers which",
                    found=f"{self.prompts.count} prompts",
                    hint="ask policy.at(group)",
                )
            return self.prompts.of(torch.zeros(batch, dtype=torch.int64))
        if batch != self.prompts.count:
            raise InputError(
                f"this policy is conditioned on the prompts of {self.prompts.count} rows", found=f"{batch} rows"
            )
        return self.prompts

    def require_room(self, length: int) -> None:
        """Raise InputError if a context of this length does not fit the model."""
        if length > self.config.context:
            raise InputError(f"start, prompt and response must fit {self.config.context} positions", found=length)

    def _laws(self, response: Tensor, first: int, read: bool = True) -> tuple[Tensor, Tensor | None]:
        """Laws of response positions first .. t, given t response tokens, and the experts at every slot.

        Without `read`, the residual stream that the laws would be read from.
        """
        prompts, response = self.rows(response.shape[0]), response.to(self.model.device)
        context = prompts.followed_by(response)
        self.require_room(context.shape[1])
        slots = prompts.lengths[:, None] - 1 + torch.arange(first, response.shape[1] + 1, device=response.device)
        replayed = None if self.replayed is None else self.replayed.over(context.shape[1], response.shape[0])
        weights = self.weights()
        count = response.shape[0]
        if not torch.is_grad_enabled():
            count = max(1, TOKENS_AT_ONCE // context.shape[1])
        laws, chosen = [], []
        for start in range(0, max(1, response.shape[0]), max(1, count)):
            part = slice(start, start + count)
            place = full_place(context[part].shape[0], context.shape[1], context.device)
            forced = None if replayed is None else replayed[part]
            x, experts = residual_stream(context[part], weights, place, self.config, self.numerics, forced)
            x = x.gather(1, slots[part][:, :, None].expand(-1, -1, x.shape[-1]))
            laws.append(next_token_laws(x, weights, self.config, self.numerics) if read else x)
            chosen.append(experts)
        return torch.cat(laws), torch.cat(chosen) if self.config.experts else None

    # ------------------------------------------------------------------------------------------- gradients
    def score_terms(self, tokens: Int64[Tensor, "B T"], coefficient: Float[Tensor, "B T"]) -> Float[Tensor, "B P"]:
        """sum_t c_bt grad log pi(y_bt | h_bt) of each response, in the flat parameter vector of `model.vector()`.

        Positions whose coefficient is 0 (padding) contribute nothing.
        """
        require_shape("coefficient", coefficient, tuple(tokens.shape))
        if tokens.shape[1] == 0:
            return torch.zeros(tokens.shape[0], self.model.parameter_count, dtype=torch.float64)
        prompts, tokens = self.rows(tokens.shape[0]), tokens.to(self.model.device)
        context = prompts.followed_by(tokens[:, :-1])
        self.require_room(context.shape[1])
        replayed = None if self.replayed is None else self.replayed.over(context.shape[1], tokens.shape[0])
        return response_gradients(
            self.model,
            self.numerics,
            context,
            prompts.lengths - 1,
            tokens,
            coefficient.to(tokens.device, torch.float64),
            replayed,
        )

    def parameters(self) -> list[Tensor]:
        """Leaf tensors that gradients are taken in, in the order of the flat vector."""
        return self.model.parameters()
