"""Operators on the ratio itself: caps, bands and masks. They accept any granularity; the default is the token ratio."""

from testbed.weighting.rule import GRANULARITIES, Rule

ENTRIES = (
    Rule(
        name="tis",
        home="truncate",
        granularities=GRANULARITIES,
        parameters={"cap": 2.0},
        summary="Truncated importance sampling: the ratio capped from above, never raised",
        formula="min(rho_t, cap)",
        source="Ionides 2008; Yao et al. 2025 (Flash-RL)",
        theorems=("C5", "C7", "O7"),
        differs="OpenRLHF and torchforge clamp both sides under this name (that is `band`); "
        "cap 3.0 in TRL, 1.2 in ROLL; NeMo-RL turns an overflow into weight 0",
    ),
    Rule(
        name="mis",
        home="mask",
        granularities=GRANULARITIES,
        parameters={"cap": 3.0},
        summary="Masked importance sampling: drop the token above the cap",
        formula="rho_t 1{rho_t <= cap}",
        source="rl-collapse series (2025); TRL `token_mask`",
        theorems=("C10",),
        differs="cap 5.0 in AReaL, 2.0 in ms-swift; a NaN ratio passes TRL's comparison",
    ),
    Rule(
        name="icepop",
        home="mask",
        granularities=GRANULARITIES,
        parameters={"low": 0.5, "high": 5.0},
        summary="Two-sided mask: drop the token outside the band",
        formula="rho_t 1{low <= rho_t <= high}",
        source="IcePop, Ring-1T report, arXiv 2510.18855",
        theorems=("C10",),
        differs="slime's lower bound is 0 unless set; verl's k1 bounds bind on the inverse ratio",
    ),
    Rule(
        name="band",
        home="truncate",
        granularities=GRANULARITIES,
        parameters={"low": 0.5, "high": 5.0},
        summary="Two-sided clamp: raises small ratios as well as cutting large ones",
        formula="min(max(rho_t, low), high); 0 where rho_t = 0",
        source="the two-sided ablation of the CIS paper (Sep 2026)",
        theorems=("C8",),
        differs="called truncated importance sampling in OpenRLHF ([.5, 5]) and torchforge ([.1, 10])",
    ),
    Rule(
        name="cispo",
        home="truncate",
        granularities=GRANULARITIES,
        parameters={"eps_low": 1.0, "eps_high": 4.0},
        summary="Clamped ratio as a detached weight: every token keeps its gradient",
        formula="min(max(rho_t, 1 - eps_low), 1 + eps_high)",
        source="MiniMax-M1, arXiv 2506.13585",
        theorems=("C5", "C8"),
        differs="TRL's epsilon_high is the cap itself; TorchRL does not detach, which makes it a mask",
    ),
)
