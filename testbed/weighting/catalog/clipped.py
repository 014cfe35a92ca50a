"""PPO-type rules: the sign of the advantage decides."""

from testbed.weighting.rule import GRANULARITIES, Rule

ENTRIES = (
    Rule(
        name="ppo_clip",
        home="clip",
        granularities=GRANULARITIES,
        parameters={"eps_low": 0.2, "eps_high": 0.2},
        needs_advantage=True,
        summary="PPO's clipped surrogate: the ratio where it has a gradient; unbounded for a negative advantage",
        formula="rho_t 1{not (A>0, rho_t > 1+eps_high) and not (A<0, rho_t < 1-eps_low)}",
        source="Schulman et al. 2017, arXiv 1707.06347",
        theorems=("O5",),
        differs="the anchor is the sampler here; with a recomputed anchor it is `decoupled_ppo`",
    ),
    Rule(
        name="decoupled_ppo",
        home="clip",
        parameters={"cap": 5.0, "eps_low": 0.2, "eps_high": 0.2},
        needs=("logp_proximal",),
        needs_advantage=True,
        summary="PPO clip around the proximal policy, times the capped mismatch proximal/behavior",
        formula="min(k_t, cap) r_t 1{active}, k = proximal/behavior, r = target/proximal",
        source="Hilton et al. 2022; AReaL, arXiv 2505.24298",
        theorems=("C5",),
        differs="AReaL without a rejection setting applies no mismatch weight; its default drops k > 5",
    ),
    Rule(
        name="dual_clip",
        home="clip",
        granularities=GRANULARITIES,
        parameters={"eps_low": 0.2, "eps_high": 0.2, "dual": 3.0},
        needs_advantage=True,
        summary="PPO clip that also cuts ratios above `dual` when the advantage is negative",
        formula="rho_t 1{active in ppo_clip and not (A<0, rho_t > dual)}",
        source="Ye et al. 2020, arXiv 1912.09729",
        differs="TRL's delta and ROLL's 1 + 2 eps play the same role",
    ),
)
