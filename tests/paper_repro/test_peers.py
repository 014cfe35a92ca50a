"""Benchmarks: they run, resume and say what is missing; our transformer is the one of transformers, on the same weights."""

from __future__ import annotations

import importlib
import json
import re
import sys

import pytest
import torch

from paper_repro.__main__ import app
from paper_repro.peers import catalogue
from paper_repro.peers.case import Case
from paper_repro.peers.catalogue import BENCHMARKS, Benchmark
from paper_repro.peers.llama import llama_of, with_start
from paper_repro.peers.runner import run_benchmarks
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy

SHARED = TransformerConfig(vocab_size=50, width=32, layers=2, heads=4, key_heads=2, hidden=48, context=64)


# ------------------------------------------------------------------------------------------------ the runner
@pytest.mark.parametrize("name", [name for name, benchmark in BENCHMARKS.items() if not benchmark.peer])
def test_every_benchmark_runs_and_leaves_a_record(name, tmp_path, capsys):
    (path,) = run_benchmarks([name], tmp_path, smoke=True)
    assert path == tmp_path / "smoke" / f"{name}.json" and list(path.parent.iterdir()) == [path]
    record = json.loads(path.read_text())
    assert {"threads", "repeats", "git", "torch"} <= record["provenance"].keys()
    printed = capsys.readouterr().out
    for case in record["result"]["cases"]:
        assert case["name"] in printed and len(case["load"]) == 2
        first, *others = case["arms"].values()
        assert first["ratio"] == [1, 1, 1]
        for arm in (first, *others):
            assert len(arm["seconds"]) == record["provenance"]["repeats"] and min(arm["seconds"]) > 0
            assert arm["rate"] == sorted(arm["rate"]) and arm["ratio"] == sorted(arm["ratio"])


def counted(monkeypatch, ran, stop=""):
    """Put a benchmark of two cases in the place of all; `ran` notes which are run, and one of them can be interrupted."""

    def arms(name):
        if name == stop:
            raise KeyboardInterrupt
        ran.append(name)
        return {"one": lambda: None, "other": lambda: {"amount": 5.0, "seen": 1}}

    made = [Case(name=name, unit="tokens", amount=2.0, arms=lambda name=name: arms(name)) for name in ("a", "b")]
    monkeypatch.setattr(Benchmark, "cases", lambda self, smoke: made)
    monkeypatch.setattr(catalogue, "BENCHMARKS", {"both": Benchmark(name="both", title="Both.", home="none")})


def test_an_interrupted_benchmark_goes_on_where_it_was(tmp_path, monkeypatch):
    ran = []
    counted(monkeypatch, ran, stop="b")
    with pytest.raises(KeyboardInterrupt):
        run_benchmarks(["both"], tmp_path, repeats=3)
    assert ran == ["a"] and not (tmp_path / "both.json").exists()
    counted(monkeypatch, ran)
    (path,) = run_benchmarks(["both"], tmp_path, repeats=3)
    assert ran == ["a", "b"]
    cases = json.loads(path.read_text())["result"]["cases"]
    assert [case["name"] for case in cases] == ["a", "b"]
    assert cases[1]["arms"]["other"]["notes"] == {"seen": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_cases_of_another_number_of_repeats_are_not_taken_over(tmp_path, monkeypatch):
    ran = []
    counted(monkeypatch, ran, stop="b")
    with pytest.raises(KeyboardInterrupt):
        run_benchmarks(["both"], tmp_path, repeats=3)
    counted(monkeypatch, ran)
    run_benchmarks(["both"], tmp_path, repeats=2)
    assert ran == ["a", "a", "b"]


def test_an_arm_that_produces_more_has_the_larger_rate(monkeypatch):
    monkeypatch.setattr("paper_repro.peers.case.in_turns", lambda arms, repeats: {"one": [1.0], "other": [1.0]})
    arms = {"one": lambda: None, "other": lambda: {"amount": 5.0}}
    found = Case(name="a", unit="tokens", amount=2.0, arms=lambda: arms).measured(1)["arms"]
    assert found["one"]["rate"][1] == 2.0 and found["other"]["rate"][1] == 5.0 and found["other"]["ratio"][1] == 2.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "must be one of autoregressive, speculation, passes"),
        (["passes", "--repeats", "0"], "must be >= 1"),
        (["autoregressive", "--smoke"], r"must be installed.*make real"),
    ],
)
def test_bad_use_is_one_sentence(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run_command(app, "bench", ["bench", *words, "--out", str(tmp_path)]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ the same weights
def test_a_start_id_of_its_own_is_refused():
    model = Transformer.random(SHARED, 0)
    with pytest.raises(InputError, match="embedding"):
        llama_of(model)
    mixture = TransformerConfig(vocab_size=5, width=8, heads=2, layers=1, hidden=8, experts=4)
    with pytest.raises(InputError, match="experts"):
        llama_of(Transformer.random(mixture, 0))


def in_double_precision(monkeypatch):
    """Let norms and angles of transformers be float64: it computes both in float32 whatever the weights are."""
    llama = importlib.import_module("transformers.models.llama.modeling_llama")

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self, x, position_ids):
        width, base = x.shape[-1] // self.config.num_attention_heads, self.config.rope_parameters["rope_theta"]
        frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = (position_ids[:, :, None].double() * frequency).repeat(1, 1, 2)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", angles)


def largest_gap(model, network, prompt, tokens, numerics):
    """Largest difference of log-probs between the two architectures, in full passes and in our cached steps."""
    policy, group = TransformerPolicy(model, prompt[None, 1:], numerics=numerics), torch.zeros_like(tokens[:, 0])
    with torch.no_grad():
        context = torch.cat([prompt.expand(len(tokens), -1), tokens[:, :-1]], 1)
        theirs = torch.log_softmax(network(context).logits[:, len(prompt) - 1 :].double(), -1)
        full = policy.at(group).log_probs(tokens)
        decoder, rows = policy.decoder(group), torch.arange(len(tokens))
        steps = torch.stack([decoder.next_log_probs(tokens[:, :t], rows) for t in range(tokens.shape[1])], 1)
    return max(float((laws - theirs).abs().max()) for laws in (full, steps))


@pytest.mark.repro
def test_our_transformer_with_shared_key_heads_is_the_one_of_transformers(monkeypatch, generator):
    model = with_start(Transformer.random(SHARED, 1, sharpness=3.0), start=7)
    network = llama_of(model, start=7)
    prompt = torch.cat([torch.tensor([7]), torch.randint(50, (6,), generator=generator)])
    tokens = torch.randint(50, (3, 9), generator=generator)
    assert largest_gap(model, network, prompt, tokens, Numerics()) < 1e-4
    in_double_precision(monkeypatch)
    assert largest_gap(model, network, prompt, tokens, Numerics()) < 1e-10
    exchanged = dict(model.weights) | {"layer1.key": model.weights["layer1.key"].roll(SHARED.head_width, 0)}
    assert largest_gap(Transformer(SHARED, exchanged), network, prompt, tokens, Numerics()) > 1e-3


@pytest.mark.repro
@pytest.mark.timeout(600)
def test_the_real_model_on_our_transformer_is_the_one_of_transformers(monkeypatch):
    from testbed.policies.pretrained import chat_prompt
    from testbed.policies.pretrained_transformer import pretrained_transformer

    prompt = chat_prompt("What is 3 + 4? Answer with the number.")
    model, tokens = pretrained_transformer(start=int(prompt[0])), torch.tensor([[504, 6342, 282], [39, 30, 2]])
    network = llama_of(model, int(prompt[0]))
    assert largest_gap(model, network, prompt, tokens, Numerics(dtype="float32")) < 1e-3
    in_double_precision(monkeypatch)
    wide = Transformer(model.config, {name: weight.detach().double() for name, weight in model.weights.items()})
    assert largest_gap(wide, llama_of(wide, int(prompt[0])), prompt[:6], tokens, Numerics()) < 1e-9


@pytest.mark.repro
def test_the_benchmark_against_transformers_runs(tmp_path, capsys):
    (path,) = run_benchmarks(["autoregressive"], tmp_path, smoke=True)
    arms = json.loads(path.read_text())["result"]["cases"][0]["arms"]
    assert list(arms)[:3] == ["transformers generate", "rollout", "speculative_rollout, no drafts"]
    assert "transformers generate" in capsys.readouterr().out


@pytest.mark.repro
def test_both_write_as_many_tokens():
    from paper_repro.peers.autoregressive import arms_of

    arms = arms_of("tiny", 3, 5)
    assert arms["transformers generate"]().shape == (3, 5)
    assert arms["rollout"]().n_tokens == arms["speculative_rollout, no drafts"]().n_tokens == 15
