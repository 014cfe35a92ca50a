"""Tasks of an optional package: against a stand-in with its interface, without the package, and with it."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments import make_task


class Doubling:
    """Data set "doubling": half of the reward for the right last digit, and an exception for an empty answer."""

    def __init__(self, size, seed, unit="", **options):
        if options:
            raise TypeError(f"unexpected {sorted(options)}")
        self.size, self.seed, self.unit = size, seed, unit

    def __getitem__(self, i):
        number = self.seed + 7 * i
        return {"question": f"2 x {number}?", "answer": f"{2 * number}{self.unit}", "metadata": {"number": number}}

    def score_answer(self, answer, entry):
        if answer == entry["answer"]:
            return 1.0
        return 0.5 * (answer[-1] == entry["answer"][-1])


@pytest.fixture
def package(monkeypatch):
    module = ModuleType("reasoning_gym")

    def create_dataset(name, **settings):
        if name != "doubling":
            raise ValueError(f"Dataset '{name}' not registered")
        return Doubling(**settings)

    module.create_dataset = create_dataset
    monkeypatch.setitem(sys.modules, "reasoning_gym", module)
    return module


def made(**params):
    return make_task("reasoning_gym", **{"dataset": "doubling", "size": 30, **params})


def test_questions_are_written_in_characters_and_padded(package):
    task = made()
    group = task.prompts()
    tokens, lengths = task.prompt_tokens(group), task.prompt_lengths(group)
    assert task.symbols == (*sorted("0123456789 ?x"), "<eos>", "<pad>")
    assert tokens.shape == (30, len("2 x 203?")) and lengths.tolist() == [len(f"2 x {7 * i}?") for i in range(30)]
    assert [task.decode(row[:n]) for row, n in zip(tokens, lengths, strict=True)] == [
        f"2 x {7 * i}?" for i in range(30)
    ]
    assert torch.equal(tokens == task.pad, torch.arange(8) >= lengths[:, None])
    assert task.horizon == len("406") + 1


def test_answers_are_judged_by_the_package_up_to_the_first_end(package):
    task = made(horizon=6)
    assert [task.check(text, 3) for text in ("42<eos>", "42<eos>7", "12<eos>", "42", "43<eos>", "2<eos>", "4<pad><eos>")] == [
        1.0, 1.0, 0.5, 0.0, 0.0, 0.5, 0.0,
    ]  # fmt: skip
    tokens, mask = task.solution(task.prompts())
    assert tokens.shape == (30, 6) and not tokens[~mask].any()
    assert task.reward(tokens, mask, task.prompts()).tolist() == [1.0] * 30
    half = torch.tensor([task.encode("12<eos>"), task.encode("42<eos>")])
    whole = torch.ones_like(half, dtype=torch.bool)
    assert task.verified(half, whole & (half != task.end), torch.tensor([3, 3])).tolist() == [False, True]
    assert task.reward(half, whole & (half != task.end), torch.tensor([3, 3])).tolist() == [0.0, 0.0]


def test_an_answer_the_checker_stumbles_over_is_not_right_and_is_counted(package):
    task = made()
    assert task.failures == 0
    assert task.check("<eos>", 3) == 0.0 and task.failures == 1


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan")])
def test_a_score_that_is_no_share_is_refused(package, monkeypatch, score):
    task = made()
    monkeypatch.setattr(task.source, "score_answer", lambda answer, entry: score)
    with pytest.raises(InputError, match=r"a score in \[0, 1\]; found .* for '42' to prompt 3"):
        task.check("42<eos>", 3)


def test_the_same_parameters_make_the_same_task(package):
    task = made(seed=4, options={"unit": "m"})
    again = make_task("reasoning_gym", **task.params)
    assert again.params == task.params and again.symbols == task.symbols and "m" in task.symbols
    assert torch.equal(again.prompt_tokens(again.prompts()), task.prompt_tokens(task.prompts()))
    assert not torch.equal(made(seed=5).prompt_tokens(torch.arange(5)), made(seed=4).prompt_tokens(torch.arange(5)))


def test_a_horizon_shorter_than_the_answer_is_said(package):
    task = made(horizon=2)
    with pytest.raises(InputError, match="must hold the answer and the end token; found 2"):
        task.solution(torch.tensor([29]))
    assert task.solution(torch.tensor([0]))[0].tolist() == [[*task.encode("0"), task.end]]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"dataset": "halving"},
            "`dataset` and `options` must be what `reasoning-gym` knows; found 'halving': Dataset",
        ),
        ({"options": {"units": "m"}}, r"found 'doubling' with \{'units': 'm'\}: unexpected \['units'\]"),
        ({"options": ["unit"]}, r"`options` must be a table of settings of the data set; found \['unit'\]"),
        ({"options": {"seed": 1}}, r"found 'doubling' with \{'seed': 1\}: .*multiple values"),
        ({"size": 0}, r"`size` must be a whole number in 1\.\.100000; found 0"),
        ({"seed": -1}, "`seed` must be a whole number >= 0; found -1"),
    ],
)
def test_what_is_refused(untyped, package, params, words):
    with pytest.raises(InputError, match=words):
        made(**params)


@pytest.mark.parametrize("key", ["question", "answer"])
def test_an_entry_without_text_is_named(package, monkeypatch, key):
    whole = Doubling.__getitem__
    monkeypatch.setattr(Doubling, "__getitem__", lambda self, i: whole(self, i) | ({key: None} if i == 7 else {}))
    with pytest.raises(InputError, match=f"a text as its {key}; found None in entry 7"):
        made()


def test_without_the_package_one_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # as if it were not there
    with pytest.raises(
        InputError, match=r"a task of `reasoning-gym` needs that package; .* \(pip install reasoning-gym\)"
    ):
        make_task("reasoning_gym")


@pytest.mark.repro
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="pip install reasoning-gym")
@pytest.mark.parametrize("dataset", ["chain_sum", "count_bits", "number_sorting"])
def test_the_package_itself(dataset):
    task = make_task("reasoning_gym", dataset=dataset, size=20, seed=3)
    group = task.prompts()
    tokens, mask = task.solution(group)
    assert task.reward(tokens, mask, group).tolist() == [1.0] * 20
    assert task.reward(tokens.roll(1, 0), mask.roll(1, 0), group).mean() < 1
    assert "reasoning-gym 0" in task.origin()
    again = make_task("reasoning_gym", **task.params)
    assert torch.equal(again.prompt_tokens(group), task.prompt_tokens(group))
