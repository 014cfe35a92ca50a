"""The warm start: its loss is the policy's likelihood, its steps are reproducible, and it learns."""

import math

import pytest
import torch

from testbed import ArithmeticTask, InputError, TabularPolicy
from testbed.environments import Parity
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
from testbed.training import Recipe, WarmStart, solution_loss, task_policy
from testbed.training.checkpoints import load_checkpoint, save_checkpoint

TASK = ArithmeticTask(3)
SHAPE = {"vocab_size": 14, "width": 16, "layers": 1, "heads": 2, "hidden": 16, "context": 8, "rope_base": 10.0}


def small_run(recipe=None, seed=0, task=TASK, **shape):
    model = Transformer.random(TransformerConfig(**{**SHAPE, **shape}), 1, dtype=torch.float32, sharpness=0.1)
    return WarmStart(model, task, task.prompts(), recipe or Recipe(steps=60, batch=8, rate=1e-2, warmup=5), seed)


@torch.no_grad()
@pytest.mark.parametrize("experts", [0, 3])
def test_prompts_of_several_lengths_are_learned_without_their_padding(experts):
    """Against a policy that is given one prompt, of its own length."""
    task = Parity(bits=6, least_bits=1)
    run = small_run(task=task, experts=experts, vocab_size=5, context=14)
    group = torch.tensor([0, 9, 40, 125])
    tokens, mask = task.demonstration(group)
    assert mask.sum(1).tolist() == [2, 4, 6, 7]  # the running parity and the end
    together = run.policy.at(group).score(tokens)
    for row, prompt in enumerate(group):
        length = int(task.prompt_lengths(prompt[None]))
        alone = TransformerPolicy(run.model, task.prompt_tokens(prompt[None])[:, :length], numerics=run.policy.numerics)
        on = mask[row]
        assert torch.allclose(alone.score(tokens[[row]][:, on])[0], together[row][on], rtol=1e-5, atol=1e-6)
    assert torch.equal(run.tokens[group], tokens) and torch.equal(run.mask[group], mask)


@torch.no_grad()
@pytest.mark.parametrize("experts", [0, 3])
def test_the_loss_is_the_policys_own_likelihood(experts):
    """Against next_log_probs, one prefix at a time, in the engine that trains."""
    task = ArithmeticTask(9)
    run = small_run(task=task, experts=experts)
    group = torch.tensor([0, 7, 95, 95])  # sums of one and of two digits
    tokens, mask = task.solution(group)
    policy = run.policy.at(group)
    total = 0.0
    for t in range(tokens.shape[1]):
        law = policy.next_log_probs(tokens[:, :t])
        total -= float(law.gather(1, tokens[:, [t]])[mask[:, t]].sum())
    got = float(solution_loss(policy, tokens, mask))
    assert got == pytest.approx(total / int(mask.sum()), rel=1e-6)
    assert abs(float(solution_loss(policy, tokens, torch.ones_like(mask))) - got) > 1e-3  # padding is not learned


def test_the_loss_of_a_table_by_hand():
    coin = TabularPolicy.from_probs(torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.1, 0.9]]))
    tokens, mask = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[True, True], [True, False]])
    want = -(math.log(0.75) + math.log(0.1) + math.log(0.25)) / 3
    assert float(solution_loss(coin, tokens, mask)) == pytest.approx(want, rel=1e-6)


def test_training_sees_every_problem_once_per_pass_in_fresh_order():
    run = small_run(Recipe(batch=4))
    passes = [torch.cat([run.rows(step) for step in range(4 * k, 4 * k + 4)]) for k in range(2)]
    assert all(torch.equal(rows.sort().values, torch.arange(16)) for rows in passes)
    assert not torch.equal(*passes)
    assert not torch.equal(small_run(Recipe(batch=4), seed=1).rows(0), run.rows(0))


@pytest.mark.parametrize("experts", [0, 3])
def test_a_resumed_run_has_the_bits_of_one_never_stopped(tmp_path, experts):
    whole, first = small_run(experts=experts), small_run(experts=experts)
    losses = [whole.advance() for _ in range(12)]
    begun = [first.advance() for _ in range(5)]
    path = save_checkpoint(tmp_path / "run.pt", first.state())
    second = small_run(experts=experts)
    second.restore(load_checkpoint(path))
    ended = [second.advance() for _ in range(7)]
    assert begun + ended == losses
    assert torch.equal(second.model.vector(), whole.model.vector())
    first.advance()  # what goes on after a checkpoint does not change it
    assert not torch.equal(first.model.vector(), small_run(experts=experts).model.vector())
    assert load_checkpoint(path)["step"] == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.pt"]


def test_a_small_run_learns_its_sums():
    run = small_run()
    first = run.advance()
    while run.step < 60:
        last = run.advance()
    assert first == pytest.approx(math.log(14), abs=0.1)  # the uniform law, to begin with
    assert last < 0.5 * first
    group = TASK.prompts()
    loss = solution_loss(task_policy(run.model, TASK).at(group), *TASK.solution(group))
    assert float(loss.detach()) < 0.5 * first


@pytest.mark.parametrize(
    ("recipe", "rates"),
    [
        (Recipe(steps=10, rate=2.0, warmup=4, schedule="constant"), [0.5, 1.0, 1.5, 2.0] + [2.0] * 6),
        (Recipe(steps=4, rate=2.0, warmup=0), [2 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]),
    ],
)
def test_rates(recipe, rates):
    assert [recipe.rate_at(step) for step in range(recipe.steps)] == pytest.approx(rates)


def test_decay_spares_the_norms():
    groups = small_run().optimizer.param_groups
    assert [g["weight_decay"] for g in groups] == [Recipe().decay, 0.0]
    assert {w.dim() for w in groups[0]["params"]} == {2} and {w.dim() for w in groups[1]["params"]} == {1}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Recipe(steps=0), "`steps` must be >= 1"),
        (lambda: Recipe(batch=0), "`batch` must be >= 1"),
        (lambda: Recipe(warmup=-1), "`warmup` must be >= 0"),
        (lambda: Recipe(rate=0.0), "`rate` must be finite and > 0"),
        (lambda: Recipe(clip=-1.0), "`clip` must be finite and > 0"),
        (lambda: small_run(Recipe(batch=17)), "a batch of 17 needs as many problems; found 16"),
    ],
)
def test_what_is_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        wrong()


def test_an_unknown_schedule_is_named(untyped):
    with pytest.raises(InputError, match="'cosine' or 'constant'; found 'linear'"):
        Recipe(schedule="linear")


def test_checkpoints_of_other_runs_are_refused(tmp_path):
    state = small_run().state()
    with pytest.raises(InputError, match="belongs to the run that wrote it; found another seed"):
        small_run(seed=1).restore(state)
    with pytest.raises(
        InputError,
        match=r"found another recipe: steps 60 there and 61 here, rate 0\.01 there and 0\.003 here, warmup 5 there",
    ):
        small_run(Recipe(steps=61, batch=8)).restore(state)
    with pytest.raises(InputError, match="must have left a checkpoint; found no file"):
        load_checkpoint(tmp_path / "none.pt")
    with pytest.raises(
        InputError, match=r"found another model: hidden 16 there and 8 here, another seed \(resume with"
    ):
        small_run(seed=1, hidden=8).restore(state)
    with pytest.raises(InputError, match=r"found another problems, another task: max_operand 3 there and 2 here "):
        small_run(task=ArithmeticTask(2)).restore(state)
    with pytest.raises(InputError, match=r"found another task: horizon 2 there and 3 here \(resume"):
        small_run(task=ArithmeticTask(3, horizon=3)).restore(state)
    for content in (b"", b"weights", b"PK\x03\x04 cut"):
        (tmp_path / "cut.pt").write_bytes(content)
        with pytest.raises(InputError, match="must be a file that training wrote"):
            load_checkpoint(tmp_path / "cut.pt")


def test_corruption_shows_another_problems_answer_that_often():
    """With half of the demonstrations corrupted a model is right about half the time: what reinforcement begins with."""
    task = ArithmeticTask(9)
    config = TransformerConfig(vocab_size=14, width=8, heads=2, layers=1, hidden=8)
    run = WarmStart(
        Transformer.random(config, 0), task, task.prompts(), Recipe(steps=9, batch=100, corruption=0.5), seed=0
    )
    shown, same = run.rows(0), run.rows(0)
    shown = run.shown(same)
    assert 0.3 < float((shown == same).double().mean()) < 0.7 and torch.equal(run.shown(same), shown)
    run.step = 1
    assert not torch.equal(run.shown(same), shown)
    plain = WarmStart(Transformer.random(config, 0), task, task.prompts(), Recipe(steps=9, batch=100), seed=0)
    assert torch.equal(plain.shown(same), same)
    with pytest.raises(InputError, match="corruption"):
        Recipe(corruption=1.5)
