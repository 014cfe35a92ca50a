"""Selective and budgeted rejection, decided by enumeration: means, biases, second moments and the law of what is kept."""

import itertools

import pytest
import torch

from testbed import PrefixTree, ReplayChooser, TabularPolicy, enumerate_law
from testbed.core.choices import KeyedChooser, RandomChooser
from testbed.core.errors import InputError, MissingField
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.weighting.obrs import log_kept_share
from testbed.weighting.rules import weigh
from testbed.weighting.selective import head_log_bound
from tests.weighting.choosers import Always
from tests.weighting.worlds import batch_with_ratios, random_batch, recorded, same

EXACT = {"rel": 1e-12, "abs": 1e-14}
WORLDS = [(3, 0.4), (5, 1.0), (6, 2.5)]


def one_token(size, scale, seed=0):
    """Return (law of one token over `size` ids, p, q, k, a statistic of the token)."""
    pi, mu = (TabularPolicy.random(size, 1, 2 * seed + i, scale) for i in (0, 1))
    law = enumerate_law(PrefixTree.random(size, 1, seed), pi, mu)
    batch = with_next_token_laws(law.batch, pi, mu)
    p, q = pi.table.exp()[0], mu.table.exp()[0]
    return law, batch, p, q, p / q, law.batch.reward.double()


def over_draws(rule, batch, **params):
    """Yield (weights, probability) for every outcome of the draws of a one-token law, row by row."""
    for row in range(batch.batch_size):
        one = batch.select([row])
        for w, probability in ReplayChooser.walk(lambda c, one=one: weigh(rule, one, chooser=c, **params)):
            yield row, w, probability


# ----------------------------------------------------------------------------------------------- selective sampling
@pytest.mark.parametrize(("size", "scale"), WORLDS)
@pytest.mark.parametrize("room", [1.0, 1.7])
def test_selective_weights_average_to_one_minus_chi2_over_the_bound(size, scale, room):
    law, batch, p, q, k, f = one_token(size, scale)
    bound = room * float(k.max())
    w = weigh("sis", batch, bound=bound).value[:, 0]
    chi2 = float((q * k**2).sum() - 1)
    assert float(law.expect(w)) == pytest.approx(1 - chi2 / bound, **EXACT)
    bias = float(law.expect(w * f) - p @ f)
    assert bias == pytest.approx(float(p @ f - q @ (k**2 * f)) / bound, **EXACT)
    assert abs(bias) > 1e-3
    if room == 1.0:
        assert torch.equal(weigh("sis", batch).value[:, 0], w)  # the head is the whole vocabulary


@pytest.mark.parametrize(("size", "scale"), WORLDS)
def test_the_second_moment_of_the_draw_is_below_that_of_the_ratio(size, scale):
    law, batch, _, q, k, _ = one_token(size, scale)
    top = float(k.max())
    drawn = sum(float(law.probs[row]) * chance * float(w.value) ** 2 for row, w, chance in over_draws("sis", batch))
    a = k / top
    assert drawn == pytest.approx(float(q @ (a + (1 - a) * k**2)), **EXACT)
    assert drawn < float(q @ k**2)
    assert float(law.expect(weigh("sis", batch).value[:, 0] ** 2)) < drawn


@pytest.mark.parametrize(("size", "scale"), WORLDS)
def test_accepted_tokens_alone_have_the_targets_law(size, scale):
    law, batch, p, _, k, _ = one_token(size, scale)
    kept = torch.zeros(size, dtype=torch.float64)
    for row, w, chance in over_draws("sis", batch):
        kept[row] += float(law.probs[row]) * chance * (float(w.value) == 1.0)  # no ratio here is exactly 1
    torch.testing.assert_close(kept, p / k.max(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("completion", [False, True])
@pytest.mark.parametrize(("size", "scale"), WORLDS)
def test_without_a_chooser_the_weight_is_the_mean_over_the_draw(size, scale, completion):
    _, batch, _, _, k, _ = one_token(size, scale)
    params = {"bound": 1.3 * float(k.max()), "completion": completion}
    mean = torch.zeros(size, dtype=torch.float64)
    for row, w, chance in over_draws("sis", batch, **params):
        assert w.gate.all()
        mean[row] += chance * w.value[0, 0]
    torch.testing.assert_close(mean, weigh("sis", batch, **params).value[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("size", "scale"), WORLDS)
def test_completion_is_unbiased_and_costs_its_excess(size, scale):
    law, batch, p, q, k, f = one_token(size, scale)
    bound = 1.25 * float(k.max())
    first = second = value = 0.0
    for row, w, chance in over_draws("sis", batch, bound=bound, completion=True):
        mass = float(law.probs[row]) * chance
        first, second = first + mass * float(w.value), second + mass * float(w.value) ** 2
        value += mass * float(w.value) * float(f[row])
    assert first == pytest.approx(1.0, **EXACT)
    assert value == pytest.approx(float(p @ f), **EXACT)
    a = k / bound
    assert second - float(q @ k**2) == pytest.approx(float(q @ (a * (k - 1) ** 2 / (1 - a))), **EXACT)
    assert second > float(q @ k**2)


def test_completion_at_the_largest_ratio_itself_loses_that_tokens_excess():
    law, batch, _, q, k, _ = one_token(5, 1.0)
    w = weigh("sis", batch, completion=True).value[:, 0]
    most = int(k.argmax())
    assert float(law.expect(w)) == pytest.approx(1 - float(q[most] * (k[most] - 1)), **EXACT)
    assert weigh("sis", batch, completion=True).acted[:, 0].tolist() == [i == most for i in range(5)]


def test_a_token_outside_the_head_is_not_tested():
    _, batch, _, q, k, _ = one_token(6, 1.0)
    order = q.argsort(descending=True)
    log_bound, tested = head_log_bound(batch, 3)
    assert tested[:, 0].tolist() == [i in order[:3] for i in range(6)]
    assert float(log_bound[0].exp()) == pytest.approx(max(1.0, float(k[order[:3]].max())), rel=1e-12)
    chooser = Always(1)
    w = weigh("sis", batch, top_k=3, chooser=chooser)
    assert [len(probs) for probs, _ in chooser.asked] == [3]
    torch.testing.assert_close(w.value[order[3:], 0], k[order[3:]], rtol=1e-12, atol=0)
    assert (w.value[order[:3], 0] == 1.0).all()


@pytest.mark.parametrize("rule", ["sis", "obrs"])
def test_draws_are_keyed_by_response_and_position(rule, rng):
    batch = recorded(random_batch(rng, rows=6, horizon=5), 0.8, 0.3)
    chooser = Always(1)
    weigh(rule, batch, chooser=chooser)
    ((probs, key),) = chooser.asked
    assert torch.equal(key, torch.nonzero(batch.mask))
    assert probs.dtype == torch.float64
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    first = weigh(rule, batch, chooser=KeyedChooser(5))
    assert same(first, weigh(rule, batch, chooser=KeyedChooser(5)))
    longer = batch.select(torch.cat([torch.arange(6), order]))
    assert torch.equal(weigh(rule, longer, chooser=KeyedChooser(5)).value[:6], first.value)
    assert not same(first, weigh(rule, batch, chooser=RandomChooser(1)))


# ----------------------------------------------------------------------------------------------- budgeted rejection
@pytest.mark.parametrize("lam", [0.3, 1.0, 1.6, 1e3])
@pytest.mark.parametrize(("size", "scale"), WORLDS)
def test_kept_tokens_have_the_budgeted_law_and_weigh_back_to_the_target(size, scale, lam):
    law, batch, p, q, k, f = one_token(size, scale)
    kept, mean, value = torch.zeros(size, dtype=torch.float64), 0.0, 0.0
    for row, w, chance in over_draws("obrs", batch, lam=lam, cap=1e9):
        mass = float(law.probs[row]) * chance * bool(w.gate)
        kept[row] += mass
        mean, value = mean + mass * float(w.value), value + mass * float(w.value) * float(f[row])
        assert bool(w.gate) or (float(w.value) == 0.0 and bool(w.acted))
    share = torch.minimum(q, p / lam).sum()
    torch.testing.assert_close(kept, torch.minimum(q, p / lam), rtol=1e-12, atol=0)
    torch.testing.assert_close(log_kept_share(batch, lam).exp()[:, 0], share.expand(size), rtol=1e-12, atol=0)
    assert mean / float(share) == pytest.approx(1.0, **EXACT)
    assert value / float(share) == pytest.approx(float(p @ f), **EXACT)
    expected = weigh("obrs", batch, lam=lam, cap=1e9).value[:, 0]
    torch.testing.assert_close(expected, share * k, rtol=1e-12, atol=0)
    assert float(law.expect(expected)) == pytest.approx(float(share), **EXACT)


def test_a_large_lam_is_plain_rejection_sampling():
    _, batch, _, _, k, _ = one_token(5, 1.0)
    w = weigh("obrs", batch, lam=float(k.max()) * 1.5, chooser=Always(1))
    torch.testing.assert_close(w.value, torch.ones_like(w.value), rtol=1e-12, atol=0)


def test_the_divergence_from_the_target_falls_with_the_budget():
    _, batch, p, q, k, _ = one_token(6, 1.5)
    left = []
    for lam in (0.999 * float(k.min()), 0.5, 1.0, 2.0, float(k.max())):
        a = torch.minimum(torch.ones_like(k), k / lam)
        law = q * a / log_kept_share(batch, lam).exp()[0, 0]
        left.append(float((p * (p / law).log()).sum()))
    assert all(b < a - 1e-6 for a, b in itertools.pairwise(left))
    assert left[-1] == pytest.approx(0.0, abs=1e-12)


# ----------------------------------------------------------------------------------------------- refusals
def test_what_is_refused(rng):
    plain = random_batch(rng)
    batch = recorded(plain)
    for rule in ("sis", "obrs"):
        with pytest.raises(MissingField, match=rf"rule `{rule}` needs `next_token`"):
            weigh(rule, plain)
        with pytest.raises(InputError, match=rf"`chooser` of rule `{rule}` must be a Chooser or None; found 7"):
            weigh(rule, batch, chooser=7)
    for params, message in [
        ({"bound": 0.9}, "`bound` must be >= 1"), ({"bound": torch.full(plain.mask.shape, 0.5)}, "`bound` must be >= 1"),
        ({"bound": torch.ones(2)}, "`bound` must have shape"), ({"top_k": 0}, "`top_k` must be a whole number >= 1"),
        ({"top_k": 2.5}, "`top_k` must be a whole number"), ({"completion": 1}, "`completion` of rule `sis`"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            weigh("sis", batch, **params)
    for params, message in [
        ({"lam": 0.0}, "`lam` must be > 0"), ({"lam": float("inf")}, "`lam` must be finite"), ({"cap": 0}, "`cap` must be > 0"),
        ({"share": 0.0}, "`share` must be > 0"), ({"share": 1.1}, r"`share` must lie in \[0, 1\]"),
        ({"share": torch.full(plain.mask.shape, 2.0)}, r"`share` must lie in \[0, 1\]"), ({"tail": -1.0}, "`tail` must lie"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            weigh("obrs", batch, **params)


def cut(batch, slots):
    """Record only the first slots of the laws; the rest becomes remaining mass."""
    laws = batch.next_token
    fields = {"ids": laws.ids[..., :slots]}
    for policy in ("target", "behavior"):
        logp = getattr(laws, f"logp_{policy}")
        fields[f"logp_{policy}"] = logp[..., :slots]
        fields[f"remaining_{policy}"] = logp[..., slots:].exp().sum(-1)
    return batch.replaced(next_token=type(laws)(**fields))


def test_a_head_that_was_cut_short_is_refused_or_bounded():
    _, batch, p, q, _, _ = one_token(6, 1.0)
    narrow = cut(batch, 4)
    with pytest.raises(InputError, match=r"must hold the sampler's 10 likeliest tokens; found 4 per position"):
        weigh("sis", narrow)
    assert weigh("sis", narrow, top_k=3).value.isfinite().all()
    with pytest.raises(InputError, match=r"rule `obrs` needs the whole next-token law; found up to"):
        weigh("obrs", narrow)
    share = float(log_kept_share(narrow, 1.0, tail=1.0)[0, 0].exp())
    exact, head = (float(torch.minimum(q, p)[:n].sum()) for n in (6, 4))
    rest = float(torch.minimum(q[4:].sum(), p[4:].sum()))
    assert share == pytest.approx(head + rest, rel=1e-12)
    assert head < exact <= share + 1e-15


def test_a_given_bound_or_share_needs_no_laws():
    batch = batch_with_ratios([[0.5, -0.5]])
    assert weigh("sis", batch, bound=3.0).value.isfinite().all()
    assert weigh("obrs", batch, share=0.5).value.isfinite().all()
