"""Rules that correct some tokens and leave others alone, by a test per token or by a mixture."""

from testbed.weighting.rule import GRANULARITIES, Rule

ENTRIES = (
    Rule(
        name="sis",
        home="selective",
        parameters={"top_k": 10, "bound": None, "completion": False, "chooser": None},
        needs=("next_token",),
        instead={"next_token": "bound"},
        summary="Selective importance sampling: a token that passes a rejection test counts once, the others by their ratio",
        formula="1 with probability a = min(1, rho_t/M), else rho_t; completion: else (rho_t - a)/(1 - a); "
        "M = max(1, max of rho over the sampler's top_k) or `bound`; no chooser: the mean over the test; "
        "untested outside the top_k: rho_t",
        source="SIS, arXiv 2607.04728 (reading of its abstract and of a reproduction)",
        theorems=("C12",),
        differs="only in its authors' own code; a summary gives the test as min(1, rho_t); the floor of M at 1 is ours",
    ),
    Rule(
        name="obrs",
        home="obrs",
        parameters={"lam": 1.0, "cap": 2.0, "tail": 1e-6, "share": None, "chooser": None},
        needs=("next_token",),
        instead={"next_token": "share"},
        summary="Budgeted rejection: drop tokens the sampler overproduces, weigh the kept ones by target / law of the kept",
        formula="min(Z max(lam, rho_t), cap) with probability a = min(1, rho_t/lam), else gated off; "
        "Z = sum_v min(q_v, p_v/lam) or `share`; no chooser: a min(Z max(lam, rho_t), cap)",
        source="Jackpot, arXiv 2602.06107 (algorithm 1; its lam and cap were not found, these are ours)",
        differs="Jackpot sums Z over the top tokens of both policies and scales all of them by one factor so that their "
        "mean is the batch's kept share; it multiplies by a capped proximal/target as well",
    ),
    Rule(
        name="ais",
        home="adaptive",
        granularities=GRANULARITIES,
        parameters={"alpha": "auto", "kl_scale": 0.01},
        summary="Adaptive importance sampling: one mixture of no correction and the whole one, chosen per batch",
        formula="(1 - alpha) + alpha rho_t; auto: alpha = ESS/n (1 - exp(-KL/kl_scale)) / (1 + CV); "
        "ESS/n = (sum rho)^2 / (n sum rho^2), CV = sd / mean and KL = mean of rho - 1 - log rho, over the batch's n ratios",
        source="AIS, arXiv 2605.13907 (its three diagnostics; how they combine is our reading)",
        theorems=("C13",),
        differs="only in its authors' own code; the error-optimal alpha is in `testbed.estimators.interpolation`",
    ),
)
