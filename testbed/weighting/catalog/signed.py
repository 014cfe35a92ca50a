"""Rules in which the sign of the advantage chooses a window, a taper or a veto."""

from testbed.weighting.rule import Rule

ENTRIES = (
    Rule(
        name="m2po",
        home="budget",
        parameters={"budget": 0.04, "eps_low": 0.3, "eps_high": 0.5, "tau": "auto"},
        needs_advantage=True,
        summary="PPO clip whose window meets a budget on the mean squared log ratio of tokens moved with their advantage",
        formula="rho_t 1{active in [min(e^-tau, 1-eps_low), max(e^tau, 1+eps_high)]}; "
        "auto: mean of min(log^2 rho, tau^2) over harmful tokens = budget; harmful: A>0 and rho>1, or A<0 and rho<1 (moved "
        "as A pushes); active: not (A>0 and rho above the window, or A<0 and rho below it)",
        source="M2PO, arXiv 2510.01161 and its code",
        differs="its code takes the largest log ratio below the root as tau, and the sign of the first token's advantage; "
        "AReaL's rule of this name drops the largest squared deviations whatever the sign, until the mean is met",
    ),
    Rule(
        name="topr",
        home="tapered",
        granularity="sequence_product",
        parameters={"cap": 1.0},
        needs_advantage=True,
        summary="Tapered off-policy REINFORCE: weight 1 for A >= 0, the capped product of the response for A < 0",
        formula="1{A>=0} + min(prod_s rho_s, cap) 1{A<0}",
        source="TOPR, arXiv 2503.14286",
        theorems=("S12",),
        differs="ROLL clamps token by token, and counts a reward of 0 as negative",
    ),
    Rule(
        name="vespo",
        home="tapered",
        granularity="sequence_product",
        parameters={"k_pos": 2.0, "lam_pos": 3.0, "k_neg": 3.0, "lam_neg": 2.0},
        needs_advantage=True,
        summary="A gamma-shaped weight of the response's product: 1 at K = 1, vanishing for products near 0 and large ones",
        formula="e^lam K^k e^(-lam K), K = prod_s rho_s; (k_pos, lam_pos) for A >= 0, (k_neg, lam_neg) for A < 0",
        source="VESPO, arXiv 2602.10693 (values of its script and of TRL)",
        differs="official code and TRL clamp log K to [log 1e-8, 20]; in TRL a zeroed token lowers log K by 18.4",
    ),
    Rule(
        name="mu_grpo",
        home="suffix",
        parameters={"trigger_low": 0.0, "trigger_high": 2.0, "eps_low": 0.5, "eps_high": 1.0},
        needs_advantage=True,
        alone=False,
        summary="PPO clip with a wide window; for A < 0 everything after a token whose ratio passed the trigger is dropped",
        formula="rho_t 1{active in ppo_clip} 1{not (A<0 and some s<t has rho_s outside [trigger_low, trigger_high])}",
        source="mu-GRPO, arXiv 2605.17570 (reading of its abstract; trigger and window were not found, these are ours)",
        differs="only in its authors' own code",
    ),
)
