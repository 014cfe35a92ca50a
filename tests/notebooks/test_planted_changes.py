"""A notebook fails when a function of the library is off by one percent: what it prints is asserted, not only shown."""

from __future__ import annotations

import dataclasses
import importlib
import runpy

import pytest

from tests.notebooks.test_sources import FOLDER, classroom
from theory.planting import planted

__all__ = ["classroom"]  # a fixture
PLANTS = [  # notebook, where the function is, its name, the part of its result that is changed
    ("03_second_moments_and_collapse", "testbed.exact.ratio_moments", "ratio_moment", None),
    ("03_second_moments_and_collapse", "testbed.exact.moments", "batch_statistic", "mean"),
    ("04_the_optimal_cap", "testbed.weighting.cap_law", "capped_error", "variance"),
    ("04_the_optimal_cap", "testbed.weighting.cap_bounds", "sharp_cap", None),
    ("05_replay_and_kkt", "testbed.exact.moments", "moments", "variance"),
    ("05_replay_and_kkt", "testbed.rollout.replay_ages", "mean_growth", None),
    ("06_mismatch_as_displacement", "testbed.weighting.confidence", "confidence_log_cap", None),
    ("06_mismatch_as_displacement", "testbed.weighting.truncate", "truncate", None),
    ("06_mismatch_as_displacement", "testbed.weighting.confidence", "displacement", None),
    ("06_mismatch_as_displacement", "theory.recorded_mismatch", "mad", None),
    ("07_group_baselines_and_normalizers", "testbed.estimators.difficulty", "difficulty_factor", None),
    ("07_group_baselines_and_normalizers", "testbed.exact.gradients", "exact_gradient", None),
    ("08_speculative_rollouts", "testbed.estimators.group_gradient", "group_coefficients", None),
    ("08_speculative_rollouts", "testbed.exact.gradients", "exact_gradient", None),
    ("09_stale_training", "testbed.estimators.advantage", "group_advantage", None),
    ("09_stale_training", "testbed.training.grpo_metrics", "batch_metrics", "ess_raw"),
    ("09_stale_training", "testbed.stats.runs", "estimate", "value"),
    ("09_stale_training", "testbed.exact.gradients", "exact_gradient", None),
    ("10_diagnose_your_run", "testbed.stats.divergence", "kl_k3", None),
    ("10_diagnose_your_run", "testbed.weighting.cap_exact", "finite_cap", None),
    ("10_diagnose_your_run", "testbed.weighting.confidence", "displacement", None),
]


def off_by_one_percent(right, part):
    """Return a function whose result, or one part of it, is 1.01 times that of the right one."""

    def wrong(*arguments, **named):
        result = right(*arguments, **named)
        return 1.01 * result if part is None else dataclasses.replace(result, **{part: 1.01 * getattr(result, part)})

    return wrong


@pytest.mark.parametrize(
    ("stem", "module", "name", "part"), PLANTS, ids=[f"{stem[:2]}_{name}" for stem, _, name, _ in PLANTS]
)
def test_one_percent_is_noticed(stem, module, name, part, classroom):
    owner = importlib.import_module(module)
    with planted(owner, name, lambda right: off_by_one_percent(right, part)), pytest.raises(AssertionError):
        runpy.run_path(str(FOLDER / f"{stem}.py"))
