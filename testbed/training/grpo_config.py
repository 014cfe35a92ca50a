"""Everything that a GRPO run is made of, as plain values: the same settings, and the same seed, are the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.core.errors import InputError
from testbed.training.fields import from_plain, require_choice, require_number, require_table, require_whole
from testbed.weighting.rules import RULES

CONTROLS = ("post_hoc", "post_hoc_overwritten", "post_hoc_rescored", "blind")
NOISES = ("gaussian", "laplace", "student", "dense", "moe", "confident_moe")
LASTS = ("version", "run")
LARGEST_STEP = 3.4e38  # AdamW multiplies float32 weights by it, and raises an error where it is larger than they can be


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """Settings of a run.

    Parameters
    ----------
    task, task_params             a task of `testbed.environments`, and its parameters
    width, layers, heads, hidden, experts   of the transformer; experts = 0 is dense
    warm_steps, warm_corruption, warm_seed   of the supervised start: updates (0: random weights), share of demonstrations
                                  that show another problem's answer (what reinforcement has to unlearn), and seed
    rule, rule_params             weighting rule and its parameters
    baseline, scale               of the advantage: see `group_advantage`
    normalizer, denominator, constant   of the loss: see `policy_loss`
    updates : int                 updates of the trainer, one per batch
    prompts, responses : int      prompts per batch, responses per prompt
    minibatches, epochs : int     optimizer steps per update: each epoch passes once over the batch, in so many parts
    rate, betas, decay            of AdamW (decay 0: Adam); betas are kept as floats, which is what it takes
    clip_norm : float | None      largest gradient norm; None: as it comes
    system, system_params         who generates when: a preset of `testbed.rollout.systems`, and its changes; the loss is
                                  that of `rule`, whatever the preset's paper trains with
    control                       "", or one of CONTROLS: a sampler that does what a boundary must not, recorded as if it had not
                                  (`testbed.training.controls`); drafts are as old as `ahead` of system "steps_off"
    keep : int | None             tokens of a control's draft before the boundary; None: half of the longest response
    engine, nodes                 "plain", or "speculative" with so many candidates (synchronous, without a clock)
    sampler, trainer : mapping    `Numerics` of the two engines, by field
    temperature, top_p            of the sampler
    noise, noise_scale            noise on the sampler's logits, one of NOISES ("" for none) with its parameters' defaults,
                                  times a factor, which is ignored without noise
    noise_lasts                   "version": drawn anew for every version of the weights; "run": drawn once, so that the
                                  engines disagree in the same way about the same prefix as long as the run lasts; ignored
                                  without noise
    evaluate_every, evaluate_responses   updates between evaluations, and sampled responses of each
    judged                        "trained": evaluations ask the prompts that are trained on, which is what a claim about
                                  optimization is about; "unseen": those that never are
    collapse : float              share of its best evaluation below which a run has collapsed at its end

    Raises
    ------
    InputError   naming the field, its value and what is allowed

    Examples
    --------
    >>> GRPOConfig.of({"rule": "cis", "updates": 10}).rule
    'cis'
    >>> GRPOConfig.of({"scale": "sd"})
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `scale` must be one of none, std; found 'sd' (did you mean std?)
    """

    task: str = "addition"
    task_params: Mapping[str, Any] = field(default_factory=dict)
    width: int = 32
    layers: int = 2
    heads: int = 4
    hidden: int = 64
    experts: int = 0
    warm_steps: int = 600
    warm_corruption: float = 0.5
    warm_seed: int = 0
    rule: str = "ppo_clip"
    rule_params: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = "group_mean"
    scale: str = "std"
    normalizer: str = "token_mean"
    denominator: str = "original"
    constant: float | None = None
    updates: int = 150
    prompts: int = 8
    responses: int = 8
    minibatches: int = 1
    epochs: int = 1
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    decay: float = 0.0
    clip_norm: float | None = 1.0
    system: str = "synchronous"
    system_params: Mapping[str, Any] = field(default_factory=dict)
    control: str = ""
    keep: int | None = None
    engine: str = "plain"
    nodes: int = 0
    sampler: Mapping[str, Any] = field(default_factory=lambda: {"dtype": "float32"})
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"dtype": "float32"})
    temperature: float = 1.0
    top_p: float = 1.0
    noise: str = ""
    noise_scale: float = 1.0
    noise_lasts: str = "version"
    evaluate_every: int = 10
    evaluate_responses: int = 256
    judged: str = "trained"
    collapse: float = 0.5

    def __post_init__(self) -> None:
        for name in ("task_params", "rule_params", "system_params", "sampler", "trainer"):
            require_table(name, getattr(self, name))
        require_choice("rule", self.rule, RULES)
        for name in self.rule_params:
            require_choice(f"rule_params of {self.rule}", name, RULES[self.rule].parameters)
        require_choice("baseline", self.baseline, ("none", "group_mean", "leave_one_out"))
        require_choice("scale", self.scale, ("none", "std"))
        require_choice("normalizer", self.normalizer, ("token_mean", "sequence_mean", "constant"))
        require_choice("denominator", self.denominator, ("original", "kept"))
        require_choice("judged", self.judged, ("trained", "unseen"))
        require_choice("engine", self.engine, ("plain", "speculative"))
        require_choice("noise", self.noise, ("", *NOISES))
        require_choice("noise_lasts", self.noise_lasts, LASTS)
        require_choice("control", self.control, ("", *CONTROLS))
        for name in ("width", "layers", "heads", "hidden", "updates", "prompts", "responses", "minibatches", "epochs"):
            require_whole(name, getattr(self, name), 1)
        for name in ("evaluate_every", "evaluate_responses"):
            require_whole(name, getattr(self, name), 1)
        for name in ("experts", "nodes", "warm_steps", "warm_seed"):
            require_whole(name, getattr(self, name), 0)
        for name in ("rate", "temperature"):
            require_number(name, getattr(self, name), positive=True)
        for name in ("decay", "noise_scale"):
            require_number(name, getattr(self, name))
        for name in ("warm_corruption", "collapse"):
            require_number(name, getattr(self, name), most=1.0)
        require_number("top_p", self.top_p, most=1.0, positive=True)
        if self.clip_norm is not None:
            require_number("clip_norm", self.clip_norm, positive=True)
        if self.constant is not None:
            require_number("constant", self.constant, positive=True)
            if self.normalizer != "constant":
                found = f"{self.constant} with {self.normalizer}"
                raise InputError("`constant` goes with normalizer 'constant'", found=found)
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        if not pair or not all(type(beta) in (int, float) and 0 <= beta < 1 for beta in self.betas):
            raise InputError("`betas` must be two numbers in [0, 1)", found=repr(self.betas))
        object.__setattr__(self, "betas", (float(self.betas[0]), float(self.betas[1])))
        if self.rate / (1 - self.betas[0]) > LARGEST_STEP:
            found = f"{self.rate:g} with betas {list(self.betas)}"
            raise InputError(f"`rate` must be at most {LARGEST_STEP:g} times 1 - `betas`[0]", found=found)
        if self.minibatches > self.prompts * self.responses:
            raise InputError("`minibatches` must not exceed the responses of a batch", found=self.minibatches)
        if self.keep is not None:
            require_whole("keep", self.keep, 1)
            if not self.control:
                raise InputError("`keep` goes with a `control`", found=f"keep = {self.keep} without one")
        if self.control and self.system != "steps_off":
            raise InputError("`control` needs `system` = 'steps_off'", found=repr(self.system))
        unread = sorted(self.system_params.keys() - {"ahead"})
        if self.control and unread:  # no clock runs: times, replay and the rest would be recorded and have no effect
            found = ", ".join(f"{name} = {self.system_params[name]!r}" for name in unread)
            raise InputError("`system_params` of a `control` must hold nothing but `ahead`", found=found)
        if self.engine == "speculative" and self.system != "synchronous":
            raise InputError("`engine` = 'speculative' needs `system` = 'synchronous'", found=repr(self.system))
        if self.engine == "speculative" and self.system_params:
            found = repr(dict(self.system_params))
            raise InputError("`engine` = 'speculative' needs `system_params` = {}: no clock runs", found=found)
        if self.nodes and self.engine != "speculative":
            raise InputError("`nodes` goes with `engine` = 'speculative'", found=f"{self.nodes} with {self.engine!r}")
        if self.engine == "speculative" and self.noise:
            raise InputError(
                "`engine` = 'speculative' needs `noise` = '': trees have no noisy law", found=repr(self.noise)
            )

    @property
    def batch(self) -> int:
        """Responses of an update."""
        return self.prompts * self.responses

    @staticmethod
    def of(values: Mapping[str, Any], place: str = "") -> GRPOConfig:
        """Read settings from plain values."""
        return from_plain(GRPOConfig, values, place)

    def plain(self) -> dict[str, Any]:
        """Every field as a plain value; `of` reads it back."""
        return asdict(self) | {"betas": list(self.betas)}
