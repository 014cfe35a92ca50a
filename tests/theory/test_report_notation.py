"""Formulas of the report: every LaTeX line of every theorem becomes MathML, and plain notation is set without loss."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest

from theory.catalogue import catalogue, find, module_names
from theory.report_parts.formula import LONGEST, mathml
from theory.report_parts.notation import number, prose
from theory.report_parts.steps import derivation_steps, latex_line, with_relation

MATHML = {
    *(
        "math",
        "mrow",
        "mi",
        "mo",
        "mn",
        "mtext",
        "mspace",
        "mstyle",
        "mfrac",
        "msqrt",
        "mroot",
        "msub",
        "msup",
        "msubsup",
    ),
    *("munder", "mover", "munderover", "mpadded"),
}


@pytest.mark.parametrize("theorem_id", list(module_names()))
def test_every_line_of_every_derivation_converts(theorem_id):
    theorem = find(theorem_id)
    lines = {step.tex for instance in theorem.instances() for step in theorem.derive(instance).steps if step.tex}
    lines |= {latex_line(step) for step in theorem.derive(theorem.instances()[0]).steps}
    for tex in lines - {""}:
        assert len(tex) <= LONGEST, tex
        tree = ElementTree.fromstring(html.unescape(mathml(tex)).replace("<<", "&lt;<").replace(">&<", ">&amp;<"))
        assert {element.tag for element in tree.iter()} <= MATHML, tex
        assert "\\" not in "".join(tree.itertext()), tex
    steps = derivation_steps(theorem_id)
    assert steps is not None
    assert steps.count('class="step"') == len(theorem.derive(theorem.instances()[0]).steps)


def test_an_unknown_command_is_refused():
    with pytest.raises(ValueError, match="cannot show"):
        mathml(r"\nosuchcommand x")


def test_words_stand_upright_and_norms_are_bars():
    assert "<mi>Var</mi>" in mathml(r"\mathrm{Var}(x)")
    assert "<mi>KL</mi>" in mathml(r"e^{KL(\pi\|\mu)}")
    assert "‖" in mathml(r"\Big\| x \Big\|")
    assert "<mi>C</mi><msup><mi>b</mi>" in mathml("Cb^2")  # a product, not a word


def test_a_relation_is_written_once():
    assert with_relation(r"\ge 0", ">=") == r"\ge 0"
    assert with_relation("x", "<=") == r"\le x"
    assert with_relation(r"\left(x\right)", "=") == r"= \left(x\right)"


@pytest.mark.parametrize(
    ("plain", "set_"),
    [
        ("E_mu[W_(k)^2]", "E<sub>μ</sub>[W<sub>(k)</sub><sup>2</sup>]"),
        ("Q^{mu_xi}", "Q<sup>μ<sub>ξ</sub></sup>"),
        ("(n d2^2/8)^(1/3)", "(n d₂<sup>2</sup>/8)<sup>1/3</sup>"),
        ("d2_k(h), chi2^2", "d<sub>2,k</sub>(h), (χ²)<sup>2</sup>"),
        ("(w-c)+ <= w^2/(4c)", "(w−c)<sub>+</sub> ≤ w<sup>2</sup>/(4c)"),
        ("sum_{s<t} TV, the sum of two", "∑<sub>s&lt;t</sub> TV, the sum of two"),
        ("log_ratios and `w_t` of *target*", "log_ratios and <code>w_t</code> of <em>target</em>"),
        ("off-policy, k-1, -E[x], 1e-30", "off-policy, k−1, −E[x], 1&nbsp;×&nbsp;10<sup>−30</sup>"),
        ("d2 < inf, sqrt 2, b* != a", "d₂ &lt; ∞, √2, b* ≠ a"),
        ("E_{mu", "E<sub>μ</sub>"),
        ("see S4", 'see <a href="#S4" class="ref">S4</a>'),
        ("<b> & 'c'", "&lt;b&gt; &amp; 'c'"),
    ],
)
def test_plain_notation(plain, set_):
    assert prose(plain) == set_


def test_no_word_of_the_catalogue_is_lost():
    for theorem in catalogue():
        for text in (theorem.statement, theorem.title, theorem.outcome, *theorem.hypotheses):
            words = re.findall(r"(?<![A-Za-z_{(^])[A-Za-z]{4,}(?![A-Za-z_}])", re.sub(r"`[^`]*`", "", text))
            shown = html.unescape(re.sub("<[^>]*>", "", prose(text)))
            lost = [
                w
                for w in words
                if w not in shown and w not in {"sqrt", "grad", "sigma", "delta", "prod", "dtau", "lambda", "kappa"}
            ]
            assert lost == [], text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), ("nan", "not a number"), ("-inf", "−∞"), (0.0, "0"), (-0.25, "−0.25"), (123456.7, "123457"), (7, "7"),
     (1e-10, "1&nbsp;×&nbsp;10<sup>−10</sup>"), (3.2e18, "3.2&nbsp;×&nbsp;10<sup>18</sup>")],
)  # fmt: skip
def test_numbers(value, shown):
    assert number(value) == shown
