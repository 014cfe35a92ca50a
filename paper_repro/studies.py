"""Which tables and figures can be reproduced, by what, at which scale; no numerical library is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Study:
    """One table or figure of a paper.

    Parameters
    ----------
    name : str           what `run` takes
    title : str          what it shows
    home : str           module and function, "module:function"
    scales : tuple       where it can be run
    only : str           why not at the others
    measurement : str    module and function that tell what the committed measurement behind scale "real" was
    """

    name: str
    title: str
    home: str
    scales: tuple[str, ...] = ("tiny", "real")
    only: str = ""
    measurement: str = "real_records:about"


LABORATORY = "it is about training runs, which are made at this scale only"
EXPERTS = "routing disagreement needs a mixture of experts, and the real model is dense"
SCALES = ("tiny", "real")
STUDIES = {
    study.name: study
    for study in (
        Study(
            "cis_table1",
            "reward after training under each correction of a mismatch",
            "cis_training:table1",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "cis_table1_kept",
            "reward after training where the engines disagree in the same way from first to last",
            "cis_kept:table1_kept",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "cis_table2",
            "controls of CIS: constant caps, a bound from below, floors",
            "cis_controls:table2",
            ("tiny",),
            LABORATORY,
        ),
        Study("cis_table3", "perturbation of a logit: center, spread, q99", "cis_logit_noise:table3"),
        Study(
            "cis_table4",
            "perturbation by number of layers that route differently",
            "cis_routing:table4",
            ("tiny",),
            EXPERTS,
        ),
        Study("cis_table5", "tails of the perturbation, with and without other routing", "cis_logit_noise:table5"),
        Study("cis_table6", "displacement of the log-odds: finite share, spread, quantiles", "cis_displacement:table6"),
        Study("cis_table7", "displacement and log ratio in ranges of confidence", "cis_displacement:table7"),
        Study("cis_table8", "operators of the arms beside this project's rules", "cis_operators:table8"),
        Study("cis_table10", "training dynamics under each correction", "cis_dynamics:table10", ("tiny",), LABORATORY),
        Study(
            "cis_table11", "reward after training by the threshold lambda", "cis_sweeps:table11", ("tiny",), LABORATORY
        ),
        Study(
            "cis_table12",
            "reward after training by the floor kappa (tiny), and how far its row 0 moves the weights",
            "cis_floor:table12",
        ),
        Study("cis_table14", "seconds of each phase of a training step", "cis_cost:table14", ("tiny",), LABORATORY),
        Study("cis_fig2", "densities of perturbation and displacement", "cis_logit_noise:figure2"),
        Study("cis_fig3", "moments of e^eps and of (1 - p) e^eps", "cis_moments:figure3"),
        Study("cis_fig4", "displacement against 1 - p, with its median", "cis_displacement:figure4"),
        Study("cis_fig5", "bias and variance of the operators", "cis_bias_variance:figure5"),
        Study("cis_fig6", "reward against threshold and floor", "cis_sweeps:figure6", ("tiny",), LABORATORY),
        Study("cis_fig7", "tail probabilities of perturbation and displacement", "cis_logit_noise:figure7"),
        Study(
            "cis_fig8",
            "spread and tail against layers that route differently",
            "cis_routing:figure8",
            ("tiny",),
            EXPERTS,
        ),
        Study("cis_fig9", "quantiles and MADs against 1 - p", "cis_displacement:figure9"),
        Study("cis_fig10", "curves of training under each correction", "cis_dynamics:figure10", ("tiny",), LABORATORY),
        Study(
            "cis_fig12",
            "tokens that each operator acts on, in the course of a run",
            "cis_tokens:figure12",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "spire_staleness",
            "reward and collapses of eleven rules, every token so many updates old",
            "lab_staleness:table",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "spire_partial",
            "responses of several versions, rules that differ on segments, and boundaries that break the condition",
            "lab_partial:table",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "spire_replay",
            "reward against compute by share of replay, and the share that the KKT conditions predict",
            "lab_replay:table",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "spire_interaction",
            "staleness, mismatch, replay and their correction: effects and interactions",
            "lab_interaction:table",
            ("tiny",),
            LABORATORY,
        ),
        Study(
            "drafts",
            "ours: drafts accepted on the real model, and its tokens against the autoregressive loop's",
            "speculation_table:drafts",
            ("real",),
            "it is about heads taught on a real model's samples; of tiny models the theorems and tests speak",
            "speculation_records:about",
        ),
    )
}


def find_study(name: str) -> Study:
    """Return a study by name.

    Raises
    ------
    InputError   no such study

    Examples
    --------
    >>> find_study("cis_table6").scales
    ('tiny', 'real')
    """
    if name not in STUDIES:
        raise InputError(
            "a table or figure must have a known name", found=repr(name), hint="one of " + ", ".join(STUDIES)
        )
    return STUDIES[name]


def require_scale(scale: str) -> None:
    """Refuse what is no scale.

    Raises
    ------
    InputError   a scale that is not in SCALES
    """
    if scale not in SCALES:
        hint = "full-size models need GPUs and are not part of this" if scale == "full" else ""
        raise InputError(f"`--scale` must be one of {', '.join(SCALES)}", found=repr(scale), hint=hint)


def study_at(name: str, scale: str) -> Study:
    """Return a study that can be run at a scale.

    Raises
    ------
    InputError   no such study, no such scale, or a study that cannot be run at it

    Examples
    --------
    >>> study_at("cis_table4", "tiny").home
    'cis_routing:table4'
    """
    study = find_study(name)
    require_scale(scale)
    if scale not in study.scales:
        raise InputError(
            f"`--scale` of {name} must be {' or '.join(study.scales)}",
            found=repr(scale),
            hint=study.only,
        )
    return study
