"""Statistics of weights, divergences, tests with a declared error rate, intervals with a declared coverage."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "concentration": ["bennett_deviation", "bennett_tail"],
        "directed_gate": ["DirectedGate"],
        "divergence": ["BoundedDivergence", "kl", "kl_bounded", "kl_straight_through"],
        "token_divergence": ["kl_k1", "kl_k2", "kl_k3"],
        "interval": ["Interval"],
        "intervals": [
            "bennett_interval",
            "bootstrap_interval",
            "clopper_pearson",
            "empirical_bernstein_interval",
            "self_normalized_interval",
        ],
        "law_gate": ["LawGate"],
        "ledger": ["GateLedger", "GateResult"],
        "log_weights": ["ess_from_log", "renyi2_from_log"],
        "mean_gate": ["MeanGate"],
        "pareto_tail": ["SmoothedWeights", "pareto_k", "pareto_k_from_log", "psis_smooth"],
        "weight_sample": ["WeightStatistic"],
        "weight_statistics": ["chi2", "ess", "mean_weight", "renyi2", "second_moment"],
    },
)
