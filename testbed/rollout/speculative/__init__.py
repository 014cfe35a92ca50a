"""Speculative rollouts: drafts, verifiers, and an engine that emits exactly what the target would have written alone."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "engine": ["speculative_rollout"],
        "heads": ["FutureHeads"],
        "head_training": ["HeadRecipe", "HeadTeacher", "teach_heads"],
        "drafters": ["Drafter", "Frontier", "HeadDrafter", "LawDrafter", "Opening", "PromptLookup"],
        "feature_layer": ["FeatureLayer"],
        "feature_record": ["FeatureRecord"],
        "feature_drafter": ["FastGRPOShape", "FeatureDrafter"],
        "feature_training": ["FeatureRecipe", "online_optimizer", "online_step", "teach_features"],
        "medusa": ["rank_accuracies", "static_layout"],
        "near_ties": ["TieChooser", "partings"],
        "group_specimens": ["GROUP_SPECIMENS", "group_specimen", "specimen_rollout"],
        "staircase": ["measured_peak", "pass_seconds"],
        "tree": ["DraftTree", "RankPaths", "largest", "largest_of_all"],
        "budget": ["Budget", "ConcurrencyBudget", "FixedBudget", "MarginalBudget"],
        "rounds": ["Round"],
    },
)
