"""Estimators as per-response terms: value, gradient, advantages, and the loss a trainer backpropagates."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "advantage": ["group_advantage"],
        "gradient": ["gradient_terms"],
        "loss": ["policy_loss"],
        "optimal_baseline": ["OptimalBaseline", "optimal_scalar_baseline"],
        "reward_scope": ["scoped_rewards"],
        "value": ["self_normalized_value", "value_terms"],
    },
)
