"""Policies with a law one can ask for, ways to perturb them, and schedules that say which policy writes the next token."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": ["Decoder", "Policy"],
        "families": ["logit_noise", "mixture", "steps_behind", "temperature"],
        "markov": ["MarkovPolicy"],
        "perturbed": ["Perturbed", "perturb"],
        "pretrained": ["PretrainedPolicy", "chat_prompt", "load_pretrained", "pretrained_tokenizer"],
        "schedule": [
            "ExogenousSchedule",
            "PrefixSchedule",
            "after_token",
            "cuts",
            "exogenous_hazard",
            "hazard",
            "one",
        ],
        "tabular": ["TabularPolicy"],
        "transformer": ["Numerics", "StepwisePolicy", "Transformer", "TransformerConfig", "TransformerPolicy"],
        "truncated": ["Truncated"],
    },
)
