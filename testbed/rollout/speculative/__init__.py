"""Speculative rollouts: drafts, verifiers, and an engine that emits exactly what the target would have written alone."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "engine": ["speculative_rollout"],
        "heads": ["FutureHeads"],
        "head_training": ["HeadRecipe", "teach_heads"],
        "drafters": ["Drafter", "Frontier", "HeadDrafter", "LawDrafter", "PromptLookup"],
        "staircase": ["measured_peak", "pass_seconds"],
        "tree": ["DraftTree", "RankPaths", "largest", "largest_of_all"],
        "budget": ["Budget", "ConcurrencyBudget", "FixedBudget", "MarginalBudget"],
        "rounds": ["Round"],
    },
)
