"""Estimators as per-response terms: value, gradient, advantages, and the loss a trainer backpropagates."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "advantage": ["group_advantage"],
        "gradient": ["gradient_terms"],
        "interpolation": ["Interpolation", "optimal_interpolation"],
        "loss": ["policy_loss"],
        "optimal_baseline": ["OptimalBaseline", "optimal_scalar_baseline"],
        "reward_scope": ["scoped_rewards"],
        "score_centering": ["centered_loss", "centered_terms"],
        "value": ["self_normalized_value", "value_terms"],
    },
)
