"""Rules that look at the token's probability beside its ratio."""

from testbed.weighting.rule import Rule

ENTRIES = (
    Rule(
        name="cis",
        home="confidence",
        parameters={"lam": 2.3, "floor": 5e-3, "cap_form": "odds", "low": 0.0},
        summary="Calibrated importance sampling: a cap that tightens with the target's confidence (cap: a reading)",
        formula="min(rho_t, cap_t), phi = max(1-p_t, floor); odds: cap = 1 + phi (e^lam - 1); "
        "linear: 1 + lam phi; loglinear: e^(lam phi); p the target's probability; low > 0: at least p_t + (1-p_t) low",
        source="CIS paper (Sep 2026); the cap is a READING: its row of the paper's table is cut off",
        theorems=("C1", "C4", "C5", "C6", "C7"),
        differs="no framework has it; slime's `CIS` is a two-sided clamp (that is `band`)",
    ),
    Rule(
        name="kpop",
        home="confidence",
        parameters={"phi": 2.0},
        summary="Mask by the binary divergence of the token's two probabilities, both directions, in float64",
        formula="rho_t 1{KL_B(p||q) <= phi, KL_B(q||p) <= phi}, KL_B(a||b) = a log(a/b) + (1-a) log((1-a)/(1-b)), "
        "1-p and 1-q at least 1e-8",
        source="KPop, Ling/Ring 2.6 report; phi from AReaL",
        theorems=("C9",),
        differs="AReaL computes it in float32, where p = q = 1 gives NaN and is masked, and also raises p and q to 1e-8",
    ),
    Rule(
        name="dppo_tv",
        home="probability_change",
        parameters={"eps_low": 0.2, "eps_high": 0.2, "cap": 3.0},
        needs_advantage=True,
        summary="Drop a token whose probability moved too far the way its advantage pushes; keep min(ratio, cap) otherwise",
        formula="min(rho_t, cap) 1{not (A>0, p-q > eps_high) and not (A<0, p-q < -eps_low)}",
        source="DPPO, arXiv 2602.04879",
        differs="prime-rl keeps the unclamped, differentiable ratio and gates A = 0 as A < 0; verl's fallback cap is 20, "
        "its actor configuration sets 3.0",
    ),
    Rule(
        name="dppo_kl",
        home="probability_change",
        parameters={"eps_low": 0.05, "eps_high": 0.05, "cap": 3.0},
        needs_advantage=True,
        summary="As dppo_tv, the size of the move measured by the binary divergence of behavior from target",
        formula="min(rho_t, cap) 1{not (A>0, p>q, KL_B(q||p) > eps_high) and not (A<0, p<q, KL_B(q||p) > eps_low)}, "
        "1-p and 1-q at least 1e-8",
        source="DPPO, arXiv 2602.04879",
        differs="verl adds 1e-8 to both complements instead, and takes .2 from the clip setting unless told; "
        "SkyRL's bound is .05",
    ),
)
