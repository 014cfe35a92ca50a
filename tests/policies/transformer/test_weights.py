"""Weights: deterministic, flat vector and files lose nothing, checkpoints follow the gradient, int8 stays in its bound."""

import numpy as np
import pytest
import torch

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy, steps
from testbed.policies.transformer.int8 import int8_codes, rounded_to_int8
from testbed.policies.transformer.numerics import Numerics, prepared
from tests.policies.transformer.small_models import CONFIGS, DENSE, MIXTURE, model_of, responses


def test_a_seed_names_one_model():
    one, again = (Transformer.random(DENSE, SeedTree("study")["model"]) for _ in range(2))
    other = Transformer.random(DENSE, SeedTree("study")["another"])
    assert torch.equal(one.vector(), again.vector())
    assert (one.vector() != other.vector()).sum() == sum(w.numel() for w in one.parameters() if w.dim() > 1)


def test_more_layers_leave_the_first_ones_as_they_were():
    deeper = TransformerConfig(vocab_size=7, width=16, layers=3, heads=2, hidden=12)
    small, large = Transformer.random(DENSE, 0), Transformer.random(deeper, 0)
    assert all(torch.equal(small.weights[n], large.weights[n]) for n in ("layer1.query", "layer0.gate", "head"))


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_vector_and_file_give_the_model_back(kind, tmp_path):
    model = model_of(kind)
    assert model.vector().shape == (model.config.parameter_count(),) == (model.parameter_count,)
    model.save(tmp_path / "model.npz")
    for other in (model.with_vector(model.vector()), Transformer.load(tmp_path / "model.npz"), model.copy()):
        assert other.config == model.config
        assert all(torch.equal(other.weights[n], w) and other.weights[n] is not w for n, w in model.weights.items())


def test_sizes_span_the_declared_range():
    assert TransformerConfig(vocab_size=14, width=64, hidden=128).parameter_count() < 1.2e5
    large = TransformerConfig(vocab_size=512, width=384, layers=6, heads=6, hidden=1024)
    assert 1.1e7 < large.parameter_count() < 1.2e7


def test_bad_weights_are_refused(tmp_path):
    model = model_of("dense")
    with pytest.raises(InputError, match="exactly the config's tensors"):
        Transformer(MIXTURE, model.weights)
    with pytest.raises(InputError, match="`head` must have shape"):
        Transformer(DENSE, model.weights | {"head": torch.zeros(2, 2)})
    with pytest.raises(InputError, match="`vector` must have shape"):
        model.with_vector(torch.zeros(3))
    with pytest.raises(InputError, match="`sharpness`"):
        Transformer.random(DENSE, 0, sharpness=-1.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "found no such file: '.*model.npz' .check the path"),
        ("folder", "found a folder"),
        (b"", "cannot be read: EOFError"),
        (b"not weights at all", "cannot be read: .*is it cut short or another program's"),
        (0.5, "cannot be read: BadZipFile"),
        (0.999, "cannot be read: BadZipFile"),
        ({"a": np.ones(2)}, "with no config"),
        ({"config": np.array("no json")}, "cannot be read: JSONDecodeError"),
        ({"config": np.array("5")}, "cannot be read: TypeError"),
        ({"config": np.array('{"size": 5}')}, "cannot be read: TypeError"),
        ({"config": np.array('{"vocab_size": 5}'), "head": np.ones(2, dtype=np.int64)}, "`head` of dtype int64"),
        ({"config": np.array('{"vocab_size": 5}'), "head": np.ones(2)}, None),
        (np.ones(3), "with one array"),
    ],
)
def test_files_that_hold_no_weights_are_refused(tmp_path, content, words):
    path = tmp_path / "model.npz"
    if isinstance(content, str):
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, float):
        model_of("dense").save(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(content * len(whole))])
    elif content is not None:
        with path.open("wb") as file:
            np.savez(file, **content) if isinstance(content, dict) else np.save(file, content)
    rule = "weights must be a file that `Transformer.save` or `pretrain --out` wrote.*"
    with pytest.raises(InputError, match=rule + words if words else "exactly the config's tensors"):
        Transformer.load(path)


def test_a_damaged_tensor_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    model_of("dense").save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        Transformer.load(path)


def test_steps_follow_the_gradient(generator):
    tokens, _ = responses(4, generator)
    model = model_of("dense")
    start = model.vector()
    history = steps(model, lambda m: -TransformerPolicy(m).score(tokens).mean(), count=3, rate=1e-2)
    losses = [-float(TransformerPolicy(m).score(tokens).detach().mean()) for m in history]
    assert losses == sorted(losses, reverse=True) and losses[0] - losses[-1] > 1e-4
    assert torch.equal(model.vector(), start) and torch.equal(history[0].vector(), start)
    terms = TransformerPolicy(model).score_terms(tokens, torch.full((4, 5), 1 / 20, dtype=torch.float64))
    torch.testing.assert_close(history[1].vector(), start + 1e-2 * terms.sum(0), rtol=0, atol=1e-14)
    far = steps(model, lambda m: -TransformerPolicy(m).score(tokens).mean(), count=1, rate=0.3, normalized=True)
    assert abs(float((far[1].vector() - start).norm()) - 0.3) < 1e-12
    with pytest.raises(InputError, match="`count`"):
        steps(model, lambda m: m.weights["head"].sum(), count=-1, rate=0.1)


def test_int8_stays_within_half_a_step(generator):
    weight = (
        torch.randn(3, 9, 40, generator=generator, dtype=torch.float64) * torch.logspace(-3, 3, 9)[:, None].double()
    )
    weight[0, 0] = 0
    codes, step = int8_codes(weight)
    error = (rounded_to_int8(weight) - weight).abs()
    assert (error <= step / 2 * (1 + 1e-12)).all() and error[1:].max(-1).values.min() > 0
    assert codes.abs().max() == 127 and codes[0, 0].abs().max() == 0
    top = weight.abs().amax(-1)
    torch.testing.assert_close(rounded_to_int8(weight).abs().amax(-1), top, rtol=1e-14, atol=0)


def test_int8_touches_the_matrices_of_the_layers_only():
    model = model_of("mixture")
    held = prepared(model.weights, Numerics(weights="int8"))
    changed = {name.split(".")[-1] for name, w in held.items() if not torch.equal(w, model.weights[name])}
    assert changed == {"query", "key", "value", "output", "gate", "up", "down"}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dtype": "int4"}, "`dtype` must be one of float64"),
        ({"reduction": "random"}, "`reduction` must be one of library, fixed"),
        ({"cached": "no"}, "`cached` must be true or false; found 'no'"),
        ({"router_noise": "0.1"}, "`router_noise` must be a number; found '0.1'"),
        ({"router_noise": 0.1}, "`router_noise` needs router='noisy'"),
        ({"router": "noisy", "router_noise": -1.0}, "finite and >= 0"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_bad_numerics_are_refused(choice, message):
    with pytest.raises(InputError, match=message):
        Numerics(**choice)
