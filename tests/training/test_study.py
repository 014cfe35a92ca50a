"""A study's file: what is refused, in one sentence that names it, before anything is run; what is not, is read as it stands."""

import re
from pathlib import Path

import pytest

from testbed.core.errors import InputError
from testbed.training.config_file import load_config
from testbed.training.study import load_study

TWO = 'rule = ["tis", "none"]\nrate = [1e-3, 2e-3]\n'
SPEED = "slow = { rate = 1e-3, system_params = { ahead = 1 } }\nfast = { rate = 2e-3 }\n"
REFUSED = {
    "base": ("base = 3", "`base` must be a table, .*; found 3"),
    "base, a list": ("base = [1]", r"`base` must be a table, .*; found \[1\]"),
    "factors": ("factors = 3", "`factors` must be a table"),
    "factors, a list": ('factors = ["rule"]', "`factors` must be a table"),
    "factors, an empty list": ("factors = []", "`factors` must be a table"),
    "design": ('design = "grid"', "`design` must be a table, .*; found 'grid'"),
    "design field": ("[design]\nkinds = 'grid'", r"`field of \[design\]` must be one of kind, words; found 'kinds'"),
    "words": ('[design]\nkind = "fraction"\nwords = 3', "`words` must be a list of lists of factors; found 3"),
    "words, flat": ('[design]\nkind = "fraction"\nwords = ["rule"]', "`words` must be a list of lists"),
    "words, empty": ('[design]\nkind = "fraction"\nwords = [[]]', "`words` must be a list of lists"),
    "words, numbers": ('[design]\nkind = "fraction"\nwords = [[1, 2]]', "`words` must be a list of lists"),
    "words, twice": (
        f'[factors]\n{TWO}[design]\nkind = "fraction"\nwords = [["rule", "rule"]]',
        "a defining word must name a factor once",
    ),
    "words of a grid": (f'[factors]\n{TWO}[design]\nwords = [["rule", "rate"]]', "`words` go with kind 'fraction'; found"),
    "words of changes": (
        f'[factors]\n{TWO}[design]\nkind = "one_at_a_time"\nwords = [["rule", "rate"]]',
        "`words` go with kind 'fraction'; found .* with 'one_at_a_time'",
    ),
    "title": ("title = 3", "`title` must be text in quotes; found 3"),
    "question": ("question = ['why']", r"`question` must be text in quotes; found \['why'\]"),
    "limits": ("limits = false", "`limits` must be text in quotes; found False"),
    "levels": ("[factors]\nrate = [0.001, 0.001]", "levels of factor `rate` must differ; found '0.001' and '0.001'"),
    "levels, written otherwise": ("[factors]\nkeep = [1, 1.0]", "levels of factor `keep` must differ"),
    "levels, of one name": ('[factors]\nkeep = [1, "1"]', "levels of factor `keep` must differ"),
    "levels, in a table": (
        "[factors.rate]\na = { rate = 1e-3 }\nb = { rate = 1e-3 }",
        "levels of factor `rate` must differ; found 'a' and 'b'",
    ),
    "one field, two factors": (
        f"[factors]\nrate = [1e-3, 2e-3]\n[factors.speed]\n{SPEED}",
        "no factor may set what another one always sets; found `rate` in rate and speed",
    ),
    "one field, two tables": (
        f"[factors.speed]\n{SPEED}[factors.age]\n1 = {{ system_params.ahead = 1 }}\n2 = {{ system_params.ahead = 2 }}",
        "found `system_params.ahead` in speed and age",
    ),
    "one field at the center": (
        '[design]\nkind = "one_at_a_time"\n[factors.a]\nx = { rate = 1e-3 }\ny = { rate = 2e-3 }\n'
        "[factors.b]\nx = { rate = 3e-3 }\ny = { updates = 3 }",
        "found `rate` in a and b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("read", [load_study, load_config])
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_study_cannot_mean_is_refused(case, read, tmp_path):
    text, words = REFUSED[case]
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read(tmp_path / "study.toml")
    assert "\n" not in str(error.value)


def test_tables_of_one_field_may_be_shared_and_a_level_may_turn_off_what_another_factor_varies(tmp_path):
    (tmp_path / "study.toml").write_text(
        'seeds = 1\n[factors.noise]\na = { noise = "moe", noise_scale = 1.0 }\nb = { noise = "moe", noise_scale = 2.0 }\n'
        '[factors.arm]\nquiet = { noise = "" }\nloud = {}\n'
        '[factors.age]\n1 = { system = "steps_off", system_params.ahead = 1 }\n'
        '2 = { system = "steps_off", system_params.ahead = 2 }\n'
        '[factors.order]\nfirst = { system_params.push = "finish" }\nlast = { system_params.push = "drain" }\n'
    )
    configs = [cell.config for cell in load_study(tmp_path / "study.toml").cells()]
    assert len(configs) == 16 and {config.noise for config in configs} == {"", "moe"}
    assert all(set(config.system_params) == {"ahead", "push"} for config in configs)


def test_a_fraction_is_read_with_its_words(tmp_path):
    (tmp_path / "half.toml").write_text(
        f'seeds = 1\n[factors]\n{TWO}[design]\nkind = "fraction"\nwords = [["rule", "rate"]]'
    )
    study = load_study(tmp_path / "half.toml")
    assert (study.kind, study.words, len(study.cells())) == ("fraction", (("rule", "rate"),), 2)


def test_the_readmes_study_loads_and_is_what_the_readme_says(tmp_path):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "own.toml").write_text(block)
    study = load_study(tmp_path / "own.toml")
    assert "runs all 12 runs" in readme and len(study.cells()) == 12
    config = load_config(tmp_path / "own.toml", ["rule=tis", "age=stale"])
    assert (config.rule, config.system, dict(config.system_params)) == ("tis", "steps_off", {"ahead": 4})
