"""Judge and run off-policy corrections of policy gradients for language models, with one definition of each estimator.

The public names below load their module on first use, so that importing `testbed` costs nothing.
"""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "core.batch": ["SegmentedBatch", "NextTokenLaws"],
        "core.choices": ["KeyedChooser", "RandomChooser", "ReplayChooser"],
        "core.errors": ["InputError", "MissingField", "TooLarge"],
        "core.seeds": ["SeedTree"],
        "diagnosis.dump": ["load_dump"],
        "environments.arithmetic": ["ArithmeticTask"],
        "environments.markov": ["MarkovEnvironment"],
        "environments.prefix_tree": ["PrefixTree"],
        "estimators.advantage": ["group_advantage"],
        "estimators.gradient": ["gradient_terms"],
        "estimators.loss": ["policy_loss"],
        "estimators.mixing": ["optimal_replay_share"],
        "estimators.value": ["value_terms"],
        "exact.gradients": ["exact_gradient"],
        "exact.law": ["ExactLaw", "enumerate_law"],
        "exact.moments": ["batch_statistic", "moments"],
        "exact.output_law": ["output_law"],
        "exact.values": ["action_values", "state_values"],
        "policies.markov": ["MarkovPolicy"],
        "policies.noise.gaussian": ["Gaussian"],
        "policies.noise.laplace": ["Laplace"],
        "policies.noise.student": ["StudentT"],
        "policies.perturbed": ["perturb"],
        "policies.schedule": [
            "ExogenousSchedule",
            "PrefixSchedule",
            "after_token",
            "cuts",
            "exogenous_hazard",
            "hazard",
            "one",
        ],
        "policies.tabular": ["TabularPolicy"],
        "policies.transformer.config": ["TransformerConfig"],
        "policies.transformer.model": ["Transformer"],
        "policies.transformer.numerics": ["Numerics"],
        "policies.transformer.policy": ["TransformerPolicy"],
        "policies.truncated": ["Truncated"],
        "stats.pareto_tail": ["pareto_k"],
        "stats.weight_statistics": ["chi2", "ess", "renyi2", "second_moment"],
        "weighting.granularity": ["log_ratios"],
        "weighting.optimal_cap": ["optimal_cap"],
        "weighting.rules": ["RULES", "weigh"],
        "weighting.weights": ["Weights"],
    },
)
