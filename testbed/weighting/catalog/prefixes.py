"""Rules that read the tokens before t, and SPIRE. Their raw ratio is the product they replace or truncate."""

from testbed.weighting.rule import Rule

ENTRIES = (
    Rule(
        name="minpro",
        home="prefix",
        granularity="prefix",
        summary="Token ratio times the smallest ratio before it",
        formula="rho_t min_{s<t} rho_s (empty minimum 1)",
        source="MinPRO, arXiv 2601.22718 (reading of its abstract)",
        differs="only in its authors' own code",
    ),
    Rule(
        name="pnpo",
        home="prefix",
        granularity="prefix",
        summary="Running geometric mean of the ratios",
        formula="(prod_{s<=t} rho_s)^(1/t)",
        source="PNPO, arXiv 2608.01418",
        theorems=("C14",),
        differs="an optional hard rejection is left out",
    ),
    Rule(
        name="vtrace",
        home="prefix",
        granularity="prefix",
        parameters={"rho_cap": 1.0, "c_cap": 1.0, "lam": 1.0},
        summary="V-trace's coefficient of the temporal-difference error at t, for the first state",
        formula="min(rho_cap, rho_t) prod_{s<t} lam min(c_cap, rho_s)",
        source="IMPALA, Espeholt et al. 2018, arXiv 1802.01561",
        differs="its policy gradient uses min(rho_cap, rho_t) alone: that is `tis` with cap 1",
    ),
    Rule(
        name="spire",
        home="segment",
        granularity="segment_prefix",
        parameters={"cap": "auto"},
        summary="Product through the end of t's segment, truncated segment by segment",
        formula="min(W_(k), cap_k), k the segment of t; auto: cap_k = 1 + (n-1) mean (W_(k) - cap_k)+ over the n responses",
        source="SPIRE, Zhan and Zhang, EMNLP 2026 (reading of its abstract)",
        theorems=("S1", "S4", "S9", "S10", "O1", "O8"),
        differs="no framework has it",
    ),
)
