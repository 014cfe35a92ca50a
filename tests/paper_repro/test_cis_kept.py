"""Arms under a mismatch that lasts: planted results that must flip a verdict do."""

from __future__ import annotations

import pytest

from paper_repro import cis_kept, cis_settings
from paper_repro.cis_verdicts import NOTHING
from paper_repro.lab_cis import ARMS
from paper_repro.lab_results import bundled
from paper_repro.study import Setting
from tests.paper_repro.laboratory_worlds import planted

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
WHERE = [f"dense model, {cis_settings.SIZES[size]}, kept for the run" for size in ("x8", "x24")]
ALL = "all places together"
LAST = dict.fromkeys(("none", "exact", "kpop", "tis"), 0.5)


def found(rewards, monkeypatch, fresh=0.8, agree=0.95, spread=0.02):
    """The finding of planted rewards by arm, .9 for those not named, beside a reward of all arms under fresh noise."""
    numbers = {"no_mismatch": agree, **rewards}
    kept = planted("mismatch_kept", lambda levels, seed: numbers.get(levels["arm"], 0.9), spread=spread)
    other = planted("mismatch", lambda levels, seed: fresh)
    monkeypatch.setattr(cis_kept, "results_of", lambda *_: kept)
    monkeypatch.setattr(cis_settings, "results_of", lambda *_: other)
    return cis_kept.table1_kept(Setting(scale="tiny"))


@pytest.mark.parametrize(("cis", "verdict"), [(0.9, REPRODUCED), (0.3, NOT)])
def test_cis_is_judged_against_every_printed_arm(cis, verdict, monkeypatch):
    words = {claim["claim"]: claim["verdict"] for claim in found(LAST | {"cis": cis}, monkeypatch).claims}
    wanted = {f"CIS ends above {ARMS[arm][0]} ({where})" for arm in cis_kept.RIVALS for where in (*WHERE, ALL)}
    assert set(words) == wanted and set(words.values()) == {verdict}


def test_where_nothing_is_lost_nothing_is_judged(monkeypatch):
    finding = found(LAST, monkeypatch, agree=0.5, spread=0.0)
    assert {(claim["verdict"], claim["to tell"]) for claim in finding.claims} == {(NOISE, NOTHING)}
    assert {check.word for check in finding.checks} == {"does not hold"}


def test_what_keeping_the_noise_does_is_kept_minus_fresh(monkeypatch):
    rows = [row for row in found(LAST, monkeypatch, fresh=0.7).rows if row["table"].startswith("Kept - fresh")]
    assert len(rows) == 2 * len(cis_kept.FRESHLY)
    signs = {row["arm"]: row["minus reference"][0] for row in rows}
    assert signs == {ARMS[arm][0]: "-" if arm in LAST else "+" for arm in cis_kept.FRESHLY}


def test_the_study_differs_from_that_of_fresh_noise_in_how_long_noise_lasts_alone():
    kept = bundled("mismatch_kept")
    for noise in kept.factors["noise"]:
        for arm in kept.factors["arm"]:
            levels = {"arm": arm, "noise": noise}
            fresh = bundled("mismatch_controls" if arm == "band" else "mismatch").config(levels).plain()
            assert kept.config(levels).plain() == fresh | {"noise_lasts": "run"}, levels
    assert kept.seeds == bundled("mismatch").seeds
