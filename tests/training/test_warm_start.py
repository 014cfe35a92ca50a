"""Cached warm starts: what they depend on makes their key, what is damaged is made anew, and they stop where they should."""

import dataclasses
import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments import Sorting, VerifiableTask, make_task
from testbed.policies.transformer import TransformerConfig
from testbed.training import (
    WARM_STARTS,
    Recipe,
    WarmStart,
    first_weights,
    small_config,
    split_prompts,
    warm_start,
    warm_start_files,
    warm_start_result,
    warm_started,
)

TASK = {"digits": 3, "base": 4}
RECIPE = Recipe(steps=6, batch=8, warmup=2)


def arguments(**changes):
    task = make_task("sorting", **TASK)
    config = small_config(task, width=8, layers=1, heads=2)
    return {"task": task, "config": config, "recipe": RECIPE, "seed": 0, "until": None, "every": 2, **changes}


def start(cache, **changes):
    return warm_start_result(**arguments(**changes), cache=cache)


def key(**changes):
    return warm_start_files.content_key(warm_start.ingredients(**arguments(**changes)))


# ------------------------------------------------------------------------------------------------ the weights
def test_a_warm_start_is_maximum_likelihood_on_problems_not_held_out(tmp_path):
    given = arguments()
    train, held = split_prompts(given["task"], 16)
    run = WarmStart(first_weights(given["config"], 0), given["task"], train, RECIPE, 0)
    for _ in range(RECIPE.steps):
        run.advance()
    got = start(tmp_path)
    assert torch.equal(got.model.vector(), run.model.vector())
    assert (got.steps, got.cached, got.model.config) == (6, False, given["config"])
    assert len(held) == 16 and got.reward * 16 == int(got.reward * 16)


def test_what_was_trained_once_is_taken_from_the_cache(tmp_path, monkeypatch):
    first = start(tmp_path, until=0.9)
    monkeypatch.setattr(WarmStart, "advance", lambda run: pytest.fail("trained again"))
    again = start(tmp_path, until=0.9)
    assert torch.equal(first.model.vector(), again.model.vector())
    assert again.cached and dataclasses.replace(again, model=first.model, cached=False) == first
    assert [w.requires_grad for w in again.model.parameters()] == [True] * len(again.model.parameters())
    assert torch.equal(warm_started(**arguments(until=0.9), cache=str(tmp_path)).vector(), first.model.vector())
    assert [path.name for path in tmp_path.iterdir()] == [f"{first.key}.start"]
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        start(tmp_path / "elsewhere", until=0.9)


def test_it_trains_on_one_thread_and_gives_the_callers_back(tmp_path, monkeypatch):
    seen, advance = [], WarmStart.advance
    monkeypatch.setattr(WarmStart, "advance", lambda run: seen.append(torch.get_num_threads()) or advance(run))
    one = start(tmp_path / "one")
    try:
        torch.set_num_threads(2)
        two = start(tmp_path / "two")
        assert torch.get_num_threads() == 2 and seen == [1] * 12
        with pytest.raises(InputError, match="finite"):
            start(tmp_path / "three", recipe=Recipe(steps=3, batch=8, rate=1e30, warmup=0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert one.key == two.key and torch.equal(one.model.vector(), two.model.vector())


# ------------------------------------------------------------------------------------------------ the key
OTHER = {  # another value of every field: a field that is added must be added here
    "recipe": {
        "steps": 7, "batch": 9, "rate": 1e-3, "schedule": "constant", "warmup": 3, "decay": 0.0, "clip": 2.0, "betas": (0.8, 0.9),
        "corruption": 0.5,
    },
    "config": {
        "vocab_size": 8, "width": 16, "layers": 2, "heads": 4, "hidden": 24, "experts": 2, "experts_per_token": 1, "context": 20,
        "rope_base": 20.0, "epsilon": 1e-5, "key_heads": 1,
    },
}  # fmt: skip


def test_every_ingredient_makes_another_key(monkeypatch):
    keys = {"as it is": key()}
    for name, values in OTHER.items():
        assert values.keys() == {field.name for field in dataclasses.fields(arguments()[name])}
        for field, value in values.items():
            keys[f"{name}.{field}"] = key(**{name: dataclasses.replace(arguments()[name], **{field: value})})
    for name, value in {"digits": 4, "base": 5, "least_digits": 2, "per_length": 30, "horizon": 9}.items():
        keys[f"task.{name}"] = key(task=make_task("sorting", **{**TASK, name: value}))
    keys |= {"seed": key(seed=1), "until": key(until=0.5), "every": key(until=0.5, every=3), "more": key(until=0.6)}
    stricter = arguments()["task"]  # the same problems, judged otherwise
    stricter.params = {**stricter.params, "strict": True}
    keys["params"] = key(task=stricter)
    assert len(set(keys.values())) == len(keys), keys
    assert key(every=3) == key()  # no one looks


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (warm_start, "FORMAT", 10**6),
        (torch, "__version__", "0.0"),
        (Sorting, "name", "ordering"),
        (Sorting, "origin", lambda task: "a package 2.0"),
        (Sorting, "demonstration", lambda task, group: tuple(x.flip(0) for x in task.solution(group))),
        (Sorting, "prompt_lengths", lambda task, group: torch.full_like(group, 3)),
        (VerifiableTask, "prompts", lambda task: torch.arange(task.n_prompts).flip(0)),
        (warm_start, "HELD_OUT", 5),
        (warm_start, "first_weights", lambda config, seed: first_weights(config, seed + 1)),
    ],
)
def test_changed_code_that_makes_other_data_makes_another_key(monkeypatch, place, name, value):
    before = key()
    monkeypatch.setattr(place, name, value)
    assert key() != before


# ------------------------------------------------------------------------------------------------ the file
def damage(path, content):
    whole = path.read_bytes()
    path.write_bytes(content(whole))
    assert path.read_bytes() != whole
    return whole


@pytest.mark.parametrize(
    "content",
    [
        lambda whole: b"",
        lambda whole: whole[:-4],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole + b"\0",
        lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
        lambda whole: whole.replace(b'"steps": 6', b'"steps": 7'),
        lambda whole: b"no hash\n" + whole,
    ],
)
def test_a_damaged_file_is_made_anew(tmp_path, content):
    first = start(tmp_path)
    path = tmp_path / f"{first.key}.start"
    damage(path, content)
    again = start(tmp_path)
    assert not again.cached and torch.equal(again.model.vector(), first.model.vector())
    assert start(tmp_path).cached


def test_another_ones_file_is_not_taken(tmp_path):
    first, other = start(tmp_path), start(tmp_path, seed=1)
    os.replace(tmp_path / f"{other.key}.start", tmp_path / f"{first.key}.start")
    again = start(tmp_path)
    assert not again.cached and torch.equal(again.model.vector(), first.model.vector())
    assert not torch.equal(other.model.vector(), first.model.vector())


def test_the_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    wanted = start(tmp_path / "there")
    whole = (tmp_path / "there" / f"{wanted.key}.start").read_bytes()
    seen = []

    def refused(beside, path):
        seen.append((Path(beside).read_bytes()[:64], path.exists(), Path(beside).parent == path.parent))
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match="full"):
        start(tmp_path / "here")
    assert len(seen) == 1 and seen[0][1:] == (False, True) and len(seen[0][0]) == len(whole[:64])
    assert list((tmp_path / "here").iterdir()) == []


def race(folder, ready, results):
    torch.set_num_threads(1)
    ready.wait()
    got = start(folder)
    results.put((got.key, got.model.vector().numpy().tobytes()))


@pytest.mark.timeout(400)
def test_workers_may_race(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(2), spawn.Queue()
    workers = [spawn.Process(target=race, args=(tmp_path, ready, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    assert len(set(got)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{got[0][0]}.start"]
    kept = start(tmp_path)
    assert kept.cached and kept.model.vector().numpy().tobytes() == got[0][1]


# ------------------------------------------------------------------------------------------------ the goal
def test_training_stops_at_the_first_look_that_finds_the_wanted_reward(tmp_path, monkeypatch):
    looks = []
    rewards = {3: 0.1, 6: 0.39, 9: 0.4, 12: 0.9, 13: 0.2}

    def scripted(task, run, held, seed):
        looks.append(run.step)
        return rewards[run.step]

    monkeypatch.setattr(warm_start, "sampled_reward", scripted)
    recipe = Recipe(steps=13, batch=8)
    got = start(tmp_path, recipe=recipe, until=0.4, every=3)
    assert (looks, got.steps, got.reward) == ([3, 6, 9], 9, 0.4)
    looks.clear()
    got = start(tmp_path, recipe=recipe, until=0.95, every=3)  # never reached
    assert (looks, got.steps, got.reward) == ([3, 6, 9, 12, 13], 13, 0.2)
    looks.clear()
    assert start(tmp_path, recipe=recipe).steps == 13 and looks == [13]


def test_the_reward_is_that_of_drawn_responses_to_problems_held_out(tmp_path):
    """Of uniform laws: a response is right with probability V^-(n + 1), so the mean over problems is known."""
    task = make_task("modular_sum", terms=2, modulus=2)
    run = WarmStart(first_weights(small_config(task, width=8, layers=1, heads=2), 0), task, task.prompts(), RECIPE, 0)
    with torch.no_grad():
        run.model.weights["head"].zero_()
    held = torch.arange(100).repeat(400)
    reward = warm_start.sampled_reward(task, run, held, warm_start.SeedTree(0))
    p = 13.0**-2
    assert abs(reward - p) < 6.2 * (p * (1 - p) / len(held)) ** 0.5  # false alarm below 1e-9
    assert reward > 0


def test_a_warm_start_learns_until_the_wanted_reward(tmp_path):
    task = make_task("sorting", digits=3, base=4)
    got = start(tmp_path, recipe=Recipe(steps=400, batch=16, rate=1e-2), until=0.5, every=5)
    assert got.reward >= 0.5 and got.steps < 400 and got.steps % 5 == 0
    assert start(tmp_path).reward < 0.5
    assert task.n_prompts == 64


# ------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"until": 0.0}, r"`until` must lie in \(0, 1\], or be None; found 0\.0"),
        ({"until": 1.5}, r"found 1\.5"),
        ({"every": 0}, "`every` must be >= 1; found 0"),
        ({"task": make_task("parity", bits=1)}, "at least 4 problems, a quarter of which is held out; found 2"),
        ({"recipe": Recipe(steps=2, batch=49)}, "a batch of 49 needs as many problems; found 48"),
        ({"config": TransformerConfig(vocab_size=7, width=8, heads=2, context=7)}, "must fit 7 positions; found 8"),
        (
            {"recipe": Recipe(steps=3, batch=8, rate=1e30, warmup=0)},
            "weights finite; found NaN or infinity after 3 steps",
        ),
    ],
)
def test_what_is_refused_leaves_no_file(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        start(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(WarmStart, "advance", lambda run: pytest.fail("trained"))
    with pytest.raises(InputError, match=r"a folder that can be written; found .*file: .* \(name another folder"):
        start(tmp_path / "file")


def test_the_default_cache_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert warm_start_files.default_cache() == tmp_path / "spire-testbed" / "warm_starts"
    got = start(None)
    assert (tmp_path / "spire-testbed" / "warm_starts" / f"{got.key}.start").exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert warm_start_files.default_cache() == tmp_path / "home" / ".cache" / "spire-testbed" / "warm_starts"


# ------------------------------------------------------------------------------------------------ the table
@pytest.mark.parametrize("name", WARM_STARTS)
def test_the_table_fits_its_tasks(name):
    chosen = WARM_STARTS[name]
    task = make_task(name, **chosen.params)
    train, _ = split_prompts(task, min(500, task.n_prompts // 4))
    assert len(train) >= 4 * chosen.recipe.batch and chosen.recipe.schedule == "constant"  # it may stop anywhere


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("name", WARM_STARTS)
def test_the_table_leaves_something_to_learn(tmp_path, name, experts):
    chosen = WARM_STARTS[name]
    task = make_task(name, **chosen.params)
    config = small_config(task, experts, width=32, hidden=64)
    for seed in range(2):
        got = warm_start_result(
            task, config, chosen.recipe, seed, until=chosen.until, every=chosen.every, cache=tmp_path
        )
        assert chosen.until <= got.reward <= chosen.until + 0.15 and got.steps < chosen.recipe.steps
