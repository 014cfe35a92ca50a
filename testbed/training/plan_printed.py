"""A plan as its reader meets it: what is varied, what that can tell and what it cannot, what it costs."""

from __future__ import annotations

from testbed.core.sections import Section, share
from testbed.training.designs import aliases, resolution
from testbed.training.fields import written
from testbed.training.plan import Plan, Seconds
from testbed.training.progress import duration
from testbed.training.study import Study

DESIGNS = {
    "grid": "Every combination of levels: each factor's effect, and how it depends on the others.",
    "one_at_a_time": "The first level of every factor, then each other level alone: effects at that one point. How a factor's "
    "effect depends on another is not seen.",
    "fraction": "A fraction of all combinations: some effects are seen as sums only, listed below.",
}


def plan_sections(study: Study, plan: Plan) -> list[Section]:
    """Sections of a plan.

    Parameters
    ----------
    study : Study
    plan : Plan      of `planned`
    """
    combinations = plan.runs // study.seeds
    rows = [
        (name if number == 0 else "", level, written(sets))
        for name, levels in study.factors.items()
        for number, (level, sets) in enumerate(levels.items())
    ]
    counted = f"{combinations} combinations x {study.seeds} seeds = {plan.runs} runs"
    what = Section(
        title=f"STUDY {study.name}",
        says=f"{study.title}: {counted}" + (f", {plan.found} of them with a record." if plan.found else "."),
        header=("factor", "level", "sets"), rows=rows, text=("level", "sets"),
        remarks=[f"Question: {study.question}"] if study.question else [],
    )  # fmt: skip
    return [what, *design_sections(study), cost_section(plan)]


def design_sections(study: Study) -> list[Section]:
    """What a study can tell, and what it cannot."""
    chance = 2.0 ** (1 - study.seeds)
    seeds = (
        f"Runs of one seed are compared with each other. Between two arms that do not differ, all {study.seeds} differences "
        f"have one sign in {share(chance)} of such studies: a sign alone tells no more than that."
    )
    limits = [f"Limits: {' '.join(study.limits.split())}"] if study.limits else []
    telling = Section(title="WHAT IT CAN TELL", says=DESIGNS[study.kind], remarks=[seeds, *limits])
    if study.kind != "fraction":
        return [telling]
    names = list(study.factors)
    words = ", ".join(" x ".join(word) for word in study.words)
    least = resolution(study.words)
    told = (
        f"Defining words: {words}. An effect of one factor is seen together with effects of {least - 1} factors or more, "
        f"one of two with effects of {least - 2} or more."
    )
    table = Section(
        title="ALIASES",
        says="Effects of one or two factors that cannot be told from each other.",
        header=("effect", "is seen together with"),
        rows=[(effect, ", ".join(others) or "none") for effect, others in aliases(names, study.words).items()],
        text=("is seen together with",),
        remarks=[told if words else "No defining words: all combinations are run."],
    )
    return [telling, table]


def cost_section(plan: Plan) -> Section:
    """What a sweep costs: CPU and wall time, each with its spread."""
    left = plan.runs - plan.found
    rows = [
        ("CPU", duration(plan.cpu.guess), _spread(plan.cpu)),
        (f"wall, --jobs {plan.jobs}", duration(plan.wall.guess), _spread(plan.wall)),
    ]
    basis = [f"the records of {plan.recorded}"] * bool(plan.recorded) + [f"a pilot of {plan.piloted}"] * bool(
        plan.piloted
    )
    remarks = (
        [f"By {' and '.join(basis)} of the combinations; the spread is that of the updates timed."] if basis else []
    )
    if plan.starts:
        spent = duration(plan.starts_cpu.guess)
        remarks.append(f"Warm starts that are not made yet: {plan.starts}; {spent} of the CPU time is theirs, once.")
    if plan.random:
        remarks.append(
            "Without its warm start a pilot wrote with random weights, whose answers are long: it may take less."
        )
    if plan.workers < plan.jobs:
        remarks.append(f"This machine has {plan.workers} cores for {plan.jobs} workers; a cluster may have more.")
    remarks.append(
        "Wall time is that of cores with nothing else to do. A run that diverges ends early; answers that grow longer take "
        "longer."
    )
    says = f"{left} runs to make." if left else "Nothing is left to run."
    return Section(
        title="COST", says=says, header=("time", "guess", "from .. to"), rows=rows if left else [], remarks=remarks
    )


def _spread(seconds: Seconds) -> str:
    return f"{duration(seconds.low)} .. {duration(seconds.high)}"
