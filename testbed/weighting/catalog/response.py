"""Rules that decide on the whole response, by its product or by its geometric mean."""

from testbed.weighting.rule import Rule

ENTRIES = (
    Rule(
        name="seq_tis",
        home="truncate",
        granularity="sequence_product",
        parameters={"cap": 2.0},
        summary="Product over the response, capped from above",
        formula="min(prod_s rho_s, cap)",
        source="verl, TRL `sequence_truncate`",
        theorems=("S12", "O7"),
        differs="cap 5.0 in SkyRL, 3.0 in TRL; ms-swift caps the geometric mean",
    ),
    Rule(
        name="seq_mis",
        home="mask",
        granularity="sequence_product",
        parameters={"low": 0.0, "cap": 3.0},
        summary="Product over the response; the response is dropped outside [low, cap]",
        formula="W 1{low <= W <= cap}, W = prod_s rho_s",
        source="TRL `sequence_mask` (its default)",
        theorems=("S12", "C10"),
        differs="ms-swift gates on the geometric mean and keeps token ratios; SkyRL uses [.5, 2]",
    ),
    Rule(
        name="geo_mask",
        home="mask",
        granularity="sequence_geomean",
        parameters={"low": 0.999, "high": 1.001},
        summary="Weight 1 on responses whose geometric mean is near 1; the others are dropped",
        formula="1{low <= (prod_s rho_s)^(1/T) <= high}",
        source="verl geometric rejection; rl-collapse series (2025)",
        theorems=("C14",),
        differs="[.99, 1.01] in SkyRL, [.9999, 1.0001] in slime; NeMo-RL multiplies kept tokens by the raw token ratio",
    ),
    Rule(
        name="gspo",
        home="clip",
        granularity="sequence_geomean",
        parameters={"eps_low": 3e-4, "eps_high": 4e-4},
        needs_advantage=True,
        summary="PPO clip on the geometric mean of the response",
        formula="s 1{active}, s = (prod_s rho_s)^(1/T)",
        source="GSPO, arXiv 2507.18071",
        theorems=("C14",),
        differs="verl clamps log s to 10; NeMo-RL multiplies by the product of the mismatch ratios as well",
    ),
)
