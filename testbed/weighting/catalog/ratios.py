"""Rules that are a granularity with no operator, and the absence of a rule."""

from testbed.weighting.rule import GRANULARITIES, Rule

ENTRIES = (
    Rule(
        name="none", home="plain", granularities=GRANULARITIES,
        summary="No correction: every token counts once",
        formula="1",
        source="the uncorrected policy gradient",
        theorems=("S5",),
        differs="PPO-type losses that take the sampler as their anchor start at rho, not at 1",
    ),
    Rule(
        name="exact", home="plain", granularities=GRANULARITIES, parameters={"clamp": False},
        summary="The unaltered token ratio: exact for one token's law, biased for a response",
        formula="rho_t; clamp=True: min(max(rho_t, 1e-6), 1e6)",
        source="the exact-ratio arm of the CIS paper (Sep 2026)",
        theorems=("S5", "C5"),
        differs="log ratios are silently clamped to +-20 in verl, slime, SkyRL and ms-swift",
    ),
    Rule(
        name="prefix", home="plain", granularity="prefix",
        summary="Product of the ratios up to and including t",
        formula="prod_{s<=t} rho_s",
        source="Precup et al. 2000 (per-decision); CTPO, arXiv 2605.07331",
        theorems=("S3", "S4", "S15"),
        differs="CTPO clamps the running log ratio to 10 and adds a length-dependent window",
    ),
    Rule(
        name="segment", home="plain", granularity="segment",
        summary="Product over the whole segment of t",
        formula="prod_{s in segment(t)} rho_s",
        source="the per-segment factor of SPIRE (Oct 2026)",
        theorems=("S2", "S9"),
        differs="ROLL's segment is a turn of the dialog, and its ratio a geometric mean",
    ),
    Rule(
        name="segment_prefix", home="plain", granularity="segment_prefix",
        summary="Product from the first token through the end of t's segment",
        formula="W_(k) = prod_{s <= end of segment k} rho_s, k the segment of t",
        source="reading of SPIRE (Oct 2026)",
        theorems=("S1", "S4", "S9", "S10"),
        differs="no framework keeps it",
    ),
    Rule(
        name="sequence_product", home="plain", granularity="sequence_product",
        summary="Product over the response: unbiased for every function of the response",
        formula="prod_s rho_s",
        source="classical importance sampling",
        theorems=("S2", "S12"),
        differs="ms-swift and AReaL call a geometric mean by the same name; verl clamps the summed log ratio to +-20",
    ),
)
