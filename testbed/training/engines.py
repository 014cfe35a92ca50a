"""The two engines of a run: the sampler that writes responses and the trainer that scores them, on the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.noise.calibration import confident_moe_noise, dense_noise, moe_noise
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.scaled import Scaled
from testbed.policies.noise.student import StudentT
from testbed.policies.perturbed import perturb
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.truncated import Truncated
from testbed.training.fields import from_plain
from testbed.training.grpo_config import GRPOConfig


def noise_law(name: str, scale: float) -> NoiseLaw:
    """Noise of a name in `grpo_config.NOISES`, times a factor.

    gaussian, laplace and student (5 degrees of freedom) have scale 1 nat before the factor; dense, moe and confident_moe
    are calibrated to the tables of the CIS paper.

    Examples
    --------
    >>> noise_law("dense", 2.0).factor
    2.0
    """
    laws = {
        "gaussian": lambda: Gaussian(1.0),
        "laplace": lambda: Laplace(1.0),
        "student": lambda: StudentT(1.0, 5.0),
        "dense": dense_noise,
        "moe": moe_noise,
        "confident_moe": confident_moe_noise,
    }
    return Scaled(laws[name](), scale)


def numerics_of(name: str, values: Mapping[str, Any]) -> Numerics:
    """Arithmetic of an engine, in float32 unless its fields say otherwise.

    Raises
    ------
    InputError   fields that do not exist, or what `Numerics` refuses

    Examples
    --------
    >>> numerics_of("sampler", {"weights": "int8"}).dtype
    'float32'
    """
    return from_plain(Numerics, {"dtype": "float32", **values}, f"`{name}`")


class Engines:
    """What a run samples from and what it trains, given its settings.

    Parameters
    ----------
    config : GRPOConfig
    env : Environment        a task with prompts
    seed : SeedTree          address of the sampler's noise

    Raises
    ------
    InputError   numerics that do not exist
    """

    def __init__(self, config: GRPOConfig, env: Environment, seed: SeedTree) -> None:
        self.config, self.env, self.seed = config, env, seed
        prompts = env.prompts()  # type: ignore[attr-defined]
        self.prompts = env.prompt_tokens(prompts)  # type: ignore[attr-defined]
        lengths = getattr(env, "prompt_lengths", None)
        self.lengths = None if lengths is None else lengths(prompts)
        self.sampler_numerics = numerics_of("sampler", config.sampler)
        self.trainer_numerics = numerics_of("trainer", config.trainer)

    def trainer(self, model: Transformer) -> TransformerPolicy:
        """Return the policy that is trained: it follows the model's weights."""
        return TransformerPolicy(model, self.prompts, self.lengths, self.trainer_numerics)

    def sampler(self, model: Transformer, version: int) -> Policy:
        """Return the policy that writes under weights of this version; noise belongs to the version, or to the run.

        The weights are the model's own: hand over a copy if the model goes on being trained.
        """
        policy: Policy = TransformerPolicy(model, self.prompts, self.lengths, self.sampler_numerics)
        if self.config.noise:
            law = noise_law(self.config.noise, self.config.noise_scale)
            drawn = version if self.config.noise_lasts == "version" else 0
            policy = perturb(policy, law, self.seed["noise"][drawn])
        if self.config.temperature != 1.0 or self.config.top_p != 1.0:
            top_p = None if self.config.top_p == 1.0 else self.config.top_p
            policy = Truncated(policy, temperature=self.config.temperature, top_p=top_p)
        return policy
