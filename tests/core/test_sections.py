"""The printed report: readable widths, the same in every pipe, and a conclusion first."""

from __future__ import annotations

import pytest
import torch

from testbed.core.sections import Section, number, plain_lines, share, with_interval
from testbed.core.seeds import SeedTree
from testbed.diagnosis import rule_effects
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.printed import report_sections
from testbed.diagnosis.report import diagnose
from testbed.diagnosis.rule_catalog import list_rules, one_rule
from testbed.sample_data import partial_rollouts_path
from testbed.weighting.registry import RULES
from theory.catalogue import module_names


@pytest.fixture(scope="module")
def sections():
    return report_sections(diagnose(load_dump(partial_rollouts_path())))


def test_every_section_says_what_to_conclude_before_its_table(sections):
    for section in sections:
        assert section.says.endswith(".")
        assert plain_lines(section)[1].strip().startswith(section.says[:20])


def test_no_line_is_wider_than_a_terminal(sections):
    for section in [*sections, *list_rules()[0], *(s for name in RULES for s in one_rule(name)[0])]:
        assert [line for line in plain_lines(section) if len(line) > 80] == []


def test_segments_beyond_the_third_column_are_left_to_the_record():
    batch = load_dump(partial_rollouts_path())
    label = torch.where(batch.mask, torch.arange(batch.horizon).expand(batch.mask.shape) // 8, -1)
    record = diagnose(batch.replaced(segment=label, engine=None).select(list(range(30))))
    table = next(s for s in report_sections(record) if s.title.startswith("PRODUCTS"))
    assert table.header == ("through segment", "k = 0", "k = 6", "k = 7")
    assert "Of 8 segments" in table.remarks[-1]
    assert len(record["products"]) == 8


def test_a_fault_is_the_first_thing_said(sections):
    batch = load_dump(partial_rollouts_path())
    record = diagnose(batch.replaced(logp_behavior=batch.logp_target, logp_proximal=None))
    checks = report_sections(record)[1]
    assert checks.says.startswith("Look at the recording before the rest: 2 of 9 checks failed; 1 not checked")
    assert checks.remarks[0].startswith("FAULT zero_variance")
    assert sections[1].says.startswith("No sign of a recording fault in 9 checks; 1 not checked")


def test_every_rule_is_listed_with_its_parameters_and_source():
    sections, records = list_rules()
    text = "\n".join(line for section in sections for line in plain_lines(section))
    assert [record["name"] for record in records] == list(RULES)
    for name, rule in RULES.items():
        assert rule.source.split()[0] in text
        single = "\n".join(plain_lines(one_rule(name)[0][0]))
        flat = " ".join(single.split())
        for part in (rule.formula, rule.summary, rule.differs, *rule.theorems, *rule.parameters):
            assert " ".join(part.split()) in flat, (name, part)


def test_the_list_of_rules_says_truly_that_its_theorems_are_decided():
    table = list_rules()[0][0]
    named = {theorem for rule in RULES.values() for theorem in rule.theorems}
    assert named and named <= set(module_names())
    assert table.remarks == ["`python -m theory show ID` prints a theorem; all that are named here are decided."]


def test_rules_that_lack_a_field_are_named():
    batch = load_dump(partial_rollouts_path()).replaced(logp_proximal=None)
    effects = rule_effects.rule_records(batch, SeedTree("test"))
    lacking = {"decoupled_ppo": ["logp_proximal"], "sis": ["next_token"], "obrs": ["next_token"]}
    assert effects["left_out"] == lacking
    assert {r["rule"] for r in effects["rules"]} == set(RULES) - set(lacking)


def test_the_advantage_of_clip_rules_needs_groups():
    batch = load_dump(partial_rollouts_path()).select(list(range(24)))
    lonely = batch.replaced(group=torch.arange(24))
    assert "mean of its group" in rule_effects.rule_records(batch, SeedTree("test"))["advantage"]
    assert "mean of the batch" in rule_effects.rule_records(lonely, SeedTree("test"))["advantage"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-14, "0"), (-3.3e-5, "-3.3e-05"), (0.0676, "0.0676"), (1.0, "1.00"), (24.54, "24.5"), (999.9, "1000"),
     (123456.0, "123456"), (1e9, "1e+09"), (float("-inf"), "-inf"), (float("nan"), "-"), (128, "128")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


def test_shares_and_intervals():
    assert [share(x) for x in (0.0, 1e-6, 0.0047, 0.53, 0.999, 1.0)] == ["0%", "<0.01%", "0.47%", "53%", "100%", "100%"]
    assert with_interval(1.0, {"low": 0.9, "high": 1.1}) == "1.00 [0.900, 1.10]"
    assert with_interval(float("inf"), None) == "inf [none]"


def test_a_long_last_column_is_wrapped_under_itself():
    section = Section(title="t", says="s.", header=("a", "b"), rows=[("x", "word " * 30)], text=("b",))
    table = plain_lines(section)[3:]
    assert len(table) == 2
    assert table[1].startswith("     word")


def test_terms_are_defined_where_they_are_used(sections):
    told = {section.title: " ".join(section.remarks) for section in sections}
    assert "E, the e-value: evidence that" in told["E[w] = 1?"]
    assert "cannot tell which side drew" in told["E[w] = 1?"]
    products = told["PRODUCTS THROUGH EACH SEGMENT"]
    assert "effective of 128: (sum w)^2 / sum w^2" in products
    assert "Pareto k: exponent" in products


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("ais", ("ESS/n = (sum rho)^2", "CV = sd / mean")),
        ("m2po", ("harmful: A>0 and rho>1", "active: not (")),
        ("opsm", ("mean_s: over all tokens s of the response",)),
        ("sis", ("testbed.NextTokenLaws",)),
    ],
)
def test_cards_define_their_terms(rule, words):
    text = " ".join(one_rule(rule)[0][0].remarks)
    assert [word for word in words if word not in text] == []
