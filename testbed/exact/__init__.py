"""Exact answers: laws by enumeration, moments, values, gradients, output laws of engines, recursions for long horizons."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "dynamic": ["markov_gradient", "markov_value", "state_distribution", "weight_growth"],
        "dynamic_moments": ["estimator_moments"],
        "gradients": ["exact_gradient"],
        "law": ["ExactLaw", "enumerate_law"],
        "moments": ["Moments", "batch_statistic"],
        "next_token_laws": ["with_next_token_laws"],
        "values": ["action_values", "prefix_law", "state_values"],
    },
)
