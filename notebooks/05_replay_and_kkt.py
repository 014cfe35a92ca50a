# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How much replay is optimal?
#
# **Question.** A stored response costs a fraction of a fresh one. It was drawn by an older policy, so its weight makes it
# vary more, and a capped weight leaves it biased. *Which share of the batch should be replay? And when is the answer not
# simply all or nothing?*
#
# | symbol | meaning |
# |---|---|
# | $a$ | the **share** of replay: exactly $aN$ of $N$ independent responses, in one unweighted mean |
# | $v_f, v_r$ | variance of one fresh, of one replayed term; $D_v = v_r - v_f$ |
# | $c_f, c_r$ | cost of one fresh, of one replayed response; $D_c = c_f - c_r$ |
# | $b$ | the **bias** of a replayed term: what its weight leaves uncorrected |
# | $C$ | the **budget**: it buys $N = C / (a c_r + (1-a) c_f)$ responses |
#
# $$\mathrm{MSE}(a) = \underbrace{a^2 b^2}_{\text{bias}} + \underbrace{(a v_r + (1-a) v_f)}_{\text{variance of one}}
# \underbrace{(a c_r + (1-a) c_f) / C}_{1/N}$$
#
# Everything below is exact: each response is listed with its probability, and nothing is sampled.

# %%
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise

import mixing_panels
import plain_panels
import torch
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, grid, reveal, say, show, table

import testbed
from testbed.estimators.mixing import optimal_replay_share, replay_share_at_size
from testbed.estimators.pareto_front import pareto_front
from testbed.estimators.replay_mse import mse_at_budget, sources
from testbed.exact.group_updates import group_compositions
from testbed.policies.families import steps_behind
from testbed.rollout.replay_ages import age_law, mean_growth
from theory import break_mutant
from theory.records.equilibrium import ONE, response
from theory.theorems import k05_replay_equilibrium as k5

TIGHT = 1e-12

# %% [markdown]
# ## Where the five numbers come from
#
# The training run of notebook 02: four tokens, reward one for at least three times token 1. The target is the last
# checkpoint; replay was drawn some updates earlier and is weighted by the product of its ratios, perhaps capped. Variances and
# biases are those of one response's gradient term, in multiples of the gradient's squared length and of its length.

# %%
HORIZON, UPDATES, RATE = 4, 8, 1.0
task = testbed.PrefixTree(2, HORIZON, [float(f"{code:04b}".count("1") >= 3) for code in range(2**HORIZON)])
checkpoints = [testbed.TabularPolicy.random(2, HORIZON, seed=0, scale=0.5)]
for _ in range(UPDATES):
    now = checkpoints[-1]
    checkpoints.append(testbed.TabularPolicy(now.logits + RATE * testbed.exact_gradient(task, now)))
pi = checkpoints[-1]
gradient = testbed.exact_gradient(task, pi)
CAPS = {"no cap": ("sequence_product", {}), **{f"{c:g}": ("seq_tis", {"cap": c}) for c in (1.75, 2.0, 3.0)}}


@lru_cache
def drawn(age, cap):
    """The law of responses `age` updates old, and the gradient term of each, in multiples of the gradient's length."""
    law = testbed.enumerate_law(task, pi, testbed.PrefixSchedule((steps_behind(checkpoints, age),), testbed.one()))
    rule, parameters = CAPS[cap]
    w = testbed.weigh(rule, law.batch, **parameters)
    return law, testbed.gradient_terms(law.batch, w, pi) / gradient.norm()


@lru_cache
def one_term(age, cap):
    """Bias and variance of one response's term."""
    m = testbed.moments(*drawn(age, cap))
    return float((m.mean - gradient / gradient.norm()).norm()), float(m.variance.sum())


V_FRESH = one_term(0, "no cap")[1]
AGES = [1, 2, 4, 6, 8]
aged = [[age, *(f"{x:.{n}f}" for cap in ("no cap", "2") for x, n in zip(one_term(age, cap), (3, 1), strict=True))]
        for age in AGES]  # fmt: skip
table(["updates since it was drawn", "bias, no cap", "variance, no cap", "bias, cap 2", "variance, cap 2"], aged)
say(f"A fresh term has variance {V_FRESH:.1f} and no bias.")

# %%
assert one_term(0, "no cap")[0] < TIGHT and round(V_FRESH, 1) == 25.2
assert all(one_term(age, "no cap")[0] < TIGHT for age in AGES)  # S2: the full product is unbiased
assert says(aged, [1, 0, 26.3, 0, 26.3], [2, 0, 27.9, 0, 27.9], [4, 0, 33.4, 0, 33.4], [6, 0, 44.5, 0.090, 41.6],
            [8, 0, 65.0, 0.574, 39.1])  # fmt: skip
for age in range(UPDATES + 1):  # the 16 responses once more, without the library
    for cap, limit in zip(CAPS, (float("inf"), 1.75, 2.0, 3.0), strict=True):
        plain = plain_panels.bias_and_variance(pi.table.exp(), steps_behind(checkpoints, age).table.exp(), 3, limit)
        assert all(abs(x - y) < 1e-9 for x, y in zip(one_term(age, cap), plain, strict=True))

# %% [markdown]
# **Is the formula the error?** Two fresh and two replayed responses: every batch of four, with its probability.

# %%
OLD = (8, "2")
batches = group_compositions([(drawn(0, "no cap")[0], 2), (drawn(*OLD)[0], 2)])
terms = torch.cat([drawn(0, "no cap")[1], drawn(*OLD)[1]])
miss = terms[batches.index].mean(1) - gradient / gradient.norm()
counted = float(batches.expect((miss**2).flatten(1).sum(1)))
given = sources(V_FRESH, one_term(*OLD)[1], 1.0, 0.5, one_term(*OLD)[0])
stated = mse_at_budget(given, 3.0).at(0.5)  # 2 fresh at cost 1 and 2 replayed at cost 0.5
say(f"{len(batches.probs):,} batches; error counted out: **{counted:.4f}**, by the formula: **{stated:.4f}**.")

# %%
assert abs(counted - stated) < 1e-10 and len(batches.probs) == 18496 and round(stated, 4) == 8.1195

# %% [markdown]
# ## Your prediction
#
# Replay varies a little more than fresh ($v_f = 1$, $v_r = 1.25$), costs a quarter ($c_f = 1$, $c_r = 1/4$) and has bias
# $b = 1/4$. A budget of $C = 16$ asks for a share of $4/13$. **You get four times the budget. Which share is best
# now?** A number between 0 and 1.

# %%
prediction = None  # the best share of replay at C = 64

# %%
SMALL = {"v_fresh": 1.0, "v_replay": 1.25, "cost_fresh": 1.0, "cost_replay": 0.25, "bias": 0.25}
before, after = (optimal_replay_share(**SMALL, budget=budget) for budget in (16, 64))
reveal(
    prediction,
    after.share,
    f"It was {before.share:.4f}. More responses average the variance away, and leave the bias: the richer you are, "
    "the less replay. $a^* = (D_c v_f - D_v c_f) / (2 (C b^2 - D_v D_c))$, clipped to $[0, 1]$ (theorem K1).",
)

# %%
assert abs(before.share - 4 / 13) < TIGHT and abs(after.share - 4 / 61) < TIGHT
assert before.regime == after.regime == "interior"

# %% [markdown]
# ## Turn the knobs
#
# Left: the two parts of the error, and the best share. Right: how the best share depends on the budget. Take the cap away:
# what becomes of the optimum?

# %%
SHARES = grid(0.0, 1.0, 100)
BUDGETS = [2.0**k for k in ((2, 5, 12) if fast() else range(2, 13))]
FINE = [2.0 ** (k / 8) for k in range(16, 97)]
REGIMES = {"none": "no replay at all", "all": "nothing but replay", "tie": "both ends are equally good",
           "interior": "a mixture is best"}  # fmt: skip
COSTS = [0.1, 0.4, 0.9] if fast() else [k / 10 for k in range(1, 10)]


def mix(age, cap, cost, budget):
    """The mixing problem of the run: replay `age` updates old, under a cap, at a cost."""
    b, v = one_term(age, cap)
    return {"v_fresh": V_FRESH, "v_replay": v, "cost_fresh": 1.0, "cost_replay": cost, "bias": b, "budget": budget}


def draw_mixing(age, cap, cost, budget):
    """Draw the error against the share, in its two parts, and the best share against the budget."""
    problem = mix(age, cap, cost, budget)
    best = optimal_replay_share(**problem)
    error = mse_at_budget(sources(**{k: v for k, v in problem.items() if k != "budget"}), budget)
    picture = mixing_panels.error_and_share(
        SHARES, error, problem, best, (FINE, [optimal_replay_share(**{**problem, "budget": c}).share for c in FINE]),
        (f"{REGIMES[best.regime]}: a = {best.share:.3f}",
         f"b = {problem['bias']:.3f}, $v_r/v_f$ = {problem['v_replay'] / V_FRESH:.2f}, $c_r$ = {cost:g}"),
    )  # fmt: skip
    prices = ", ".join(f"multiplier of {k}: {v:.3g}" for k, v in best.multipliers.items() if v) or "no constraint binds"
    ends = f"error {best.mse:.3f}; without replay {error.at(0):.3f}, with nothing else {error.at(1):.3f}"
    return picture, f"best share <b>{best.share:.4f}</b> ({best.regime}; {prices}); {ends}"


knobs = Control(
    draw_mixing,
    age=Choice("updates since replay was drawn", [1, 4, 8] if fast() else range(1, UPDATES + 1), 8),
    cap=Choice("cap on the weight", list(CAPS), "1.75"),
    cost=Choice("cost of a replayed response", COSTS, 0.4),
    budget=Choice("budget C", BUDGETS, 32.0),
)
knobs.show()

# %%
for age in AGES:
    for cost in (0.1, 0.5, 0.9):
        ladder = [optimal_replay_share(**mix(age, "2", cost, c)) for c in FINE]
        for best, c in zip(ladder, FINE, strict=True):
            (b, v), held = one_term(age, "2"), any(best.multipliers.values())
            assert best.mse <= min(b**2 + v * cost / c, V_FRESH / c) + TIGHT and held == (best.regime != "interior")
        assert all(b.share <= a.share + TIGHT for a, b in pairwise(ladder))  # richer: less replay
        for c in BUDGETS:  # K4: without a cap there is no bias, and no mixture
            assert optimal_replay_share(**mix(age, "no cap", cost, c)).share in (0.0, 1.0)
for at in settings(knobs):
    b, v = one_term(at["age"], at["cap"])
    assert says(told(knobs, **at), mixing_panels.mixing_by_hand(V_FRESH, v, b, at["cost"], at["budget"]))
assert optimal_replay_share(**mix(8, "1.75", 0.4, 32.0)).regime == "interior"  # where the control starts

# %% [markdown]
# ## Your prediction
#
# Now replay is unbiased ($b = 0$), costs half ($c_r = 1/2$) and varies $2.5$ times as much ($v_f = 1$, $C = 3$). Somebody sets
# the derivative of the error to zero and finds $a = 2/3$. **Which share is best?**

# %%
prediction = None  # the best share of unbiased replay

# %%
UNBIASED = {"v_fresh": 1.0, "v_replay": 2.5, "cost_fresh": 1.0, "cost_replay": 0.5, "bias": 0.0}
corner = optimal_replay_share(**UNBIASED, budget=3)
curve = mse_at_budget(sources(**UNBIASED), 3)
vertex = -curve.linear / (2 * curve.square)
reveal(
    prediction,
    corner.share,
    f"At a = {vertex:.4f} the error is {curve.at(vertex):.4f}, the *largest* of all mixtures; without replay it is "
    f"{corner.mse:.4f}. Without a bias the error is the product of two straight lines, one rising and one falling: it bends "
    "down, and the source with the smaller product of variance and cost gets everything (theorem K4).",
)

# %%
assert corner.share == 0 and corner.curvature < 0
assert abs(vertex - 2 / 3) < TIGHT and abs(curve.at(vertex) - 4 / 9) < TIGHT and abs(corner.mse - 1 / 3) < TIGHT
assert all(curve.at(a) <= curve.at(vertex) + TIGHT for a in SHARES)

# %% [markdown]
# ## What makes a mixture optimal
#
# A bias, a limited pool, or a ceiling on what one response may cost (a throughput to be met). A **multiplier** is the price of
# a constraint: how much the error falls per unit by which it is loosened. It is zero where the constraint does not bind.

# %%
UNIT = {"v_fresh": 1, "cost_fresh": 1}
FIXED = {**UNIT, "v_replay": 2, "cost_replay": 0.5, "bias": 0.5, "n": 4}
CASES = {
    "nothing (b = 0)": optimal_replay_share(**UNBIASED, budget=3),
    "a bias": optimal_replay_share(**SMALL, budget=16),
    "a pool of 6": optimal_replay_share(**UNIT, v_replay=1.5, cost_replay=0.25, bias=0, budget=10, pool=6),
    "a ceiling of 0.8": optimal_replay_share(**UNIT, v_replay=4, cost_replay=0.5, bias=0, budget=10, cost_cap=0.8),
    "4 responses, a ceiling of 0.75 (K2)": replay_share_at_size(**FIXED, cost_cap=0.75),
}
asked = [
    [f"{best.share:.4f}", best.regime, ", ".join(f"{k}: {v:.4f}" for k, v in best.multipliers.items() if v) or "-"]
    for best in CASES.values()
]
table(["what asks for a mixture", "best share", "regime", "multipliers that are not 0"],
      [[name, *row] for name, row in zip(CASES, asked, strict=True)])  # fmt: skip

# %%
found = list(CASES.values())
assert [best.regime for best in found] == ["none", "interior", "pool_bound", "cost_bound", "cost_bound"]
assert all(abs(best.share - a) < TIGHT for best, a in zip(found, (0, 4 / 13, 6 / 14.5, 0.4, 0.5), strict=True))
assert says(asked, [0, 1 / 3], 4 / 13, [6 / 14.5, 0.0027], [0.4, 0.26], [0.5, 1])
loosened = [replay_share_at_size(**FIXED, cost_cap=0.75 + d).mse for d in (-1e-3, 1e-3)]
assert abs((loosened[0] - loosened[1]) / 2e-3 - 1) < 1e-9  # a multiplier is a price

# %% [markdown]
# ## Points that no weighted sum finds
#
# Error is one objective, cost per response (throughput) another. A usual recipe minimizes $\mathrm{MSE} + \lambda \cdot$ cost
# and sweeps $\lambda$. With a fixed *number* of responses this finds every Pareto point. With a fixed *budget* the error may
# bend down; the sweep then jumps from no replay to all replay, and misses shares that nothing beats.

# %%
FRONTS = {
    "fixed number of responses": pareto_front(v_fresh=1, v_replay=4, cost_fresh=1, cost_replay=0.5, bias=0.5, n=10),
    "fixed budget": pareto_front(v_fresh=1, v_replay=4, cost_fresh=1, cost_replay=0.5, bias=0.1, budget=10),
}
SWEEP = [0.05 * k for k in range(61)]
swept = {name: sorted({round(a, 9) for w in SWEEP for a in front.weighted_sum(w)}) for name, front in FRONTS.items()}
fronts = mixing_panels.fronts(FRONTS, swept, ("fixed budget", 0.5))
show(fronts)
tall = FRONTS["fixed budget"]
start, stop, middle = tall.pieces[0].low, tall.pieces[0].high, tall.at_cost(0.75)
say(
    f"Right: the shares from {start:g} up to {stop:.3f}, and 1, are Pareto-optimal; the sweep returns {swept['fixed budget']}. "
    f"A *ceiling* on cost finds the others: at most 0.75 per response gives a = {middle:g} (theorem K3)."
)

# %%
assert swept["fixed budget"] == [0.0, 1.0] and says(fronts.words, 21, 2, 0.035)
assert all(abs(a - k / 20) < 1e-8 for k, a in enumerate(swept["fixed number of responses"]))  # a = w - 0.6, clipped
assert tall.optimal(0.5) and not tall.is_supported(0.5) and abs(tall.gap(0.5) - 0.035) < TIGHT
assert abs(middle - 0.5) < TIGHT and start == 0 and round(stop, 3) == 0.786 and not tall.optimal(0.9)
assert all(FRONTS["fixed number of responses"].gap(a) == 0 for a in swept["fixed number of responses"])

# %% [markdown]
# ## When replay ages
#
# Replay more, and less is stored: what you replay gets older, and its variance $V(a)$ grows. A share is an **equilibrium** if
# it is the best one for the variance it causes itself. Below $V(a) = v_f (1 + g (\mathrm{age} - 1))$ with age $1/(1-a)$, up to
# a largest one. Right: a trainer that keeps setting the share to what was best for the last one.

# %%
AGING = {"one": ONE, **{case.name: case for case in k5.equilibria() if case.name in ("two", "three", "none")}}
POINTS, ROUNDS = (60 if fast() else 240), 200


@lru_cache
def settled(name, growth):
    """The aging problem with its growth multiplied, and what the library finds."""
    case = replace(AGING[name], growth=AGING[name].growth * growth)
    return case, case.found


def draw_aging(name, growth, start):
    """Draw the best response, its fixed points, and the shares round by round."""
    case, found = settled(name, growth)
    path = [start]
    for _ in range(ROUNDS):
        path.append(response(case, path[-1]))
    moving = f"settles at {path[-1]:.3f}" if abs(path[-1] - path[-2]) < 1e-6 else "never settles"
    title = f"set again and again from {start:g}: {moving}"
    picture = mixing_panels.equilibria(partial(response, case), found, path[:31], POINTS, title)
    shares = ", ".join(f"{a:.4f}" for a in found.shares) or "none"
    sure = [("" if yes else "not ") + "guaranteed" for yes in (found.existence_guaranteed, found.uniqueness_guaranteed)]
    return picture, f"equilibria: <b>{shares}</b> (existence {sure[0]}, uniqueness {sure[1]}); from {start:g}: {moving}"


aging = Control(
    draw_aging,
    name=Choice("problem", list(AGING), "none"),
    growth=Choice("growth of the variance, times", [0.0, 1.0, 2.0] if fast() else [0.25 * k for k in range(9)], 1.0),
    start=Choice("share to start from", [0.1 * k for k in ((1, 5, 9) if fast() else range(1, 10))], 0.5),
)
aging.show()

# %%
counts = {name: len(settled(name, 1.0)[1].shares) for name in AGING}
assert counts == {"one": 1, "two": 2, "three": 3, "none": 0} and settled("none", 1.0)[1].jumps
for name in AGING:
    case, equilibria = settled(name, 1.0)
    assert all(abs(response(case, a) - a) < 1e-9 for a in equilibria.shares)  # and K5 promises some:
    assert not equilibria.existence_guaranteed or equilibria.shares
    assert settled(name, 0.0)[1].verdict == "one"  # nothing ages: K1
for at in settings(aging):
    case = settled(at["name"], at["growth"])[0]
    assert says(told(aging, **at), mixing_panels.aging_by_hand(case, case.growth, at["start"], ROUNDS))

# %% [markdown]
# **Who leaves the buffer matters.** A buffer of 16 responses, two of them stored per step: first in, first out keeps ages
# below a bound; if a random one leaves, ages have a geometric tail. When each step of age multiplies the variance, that tail
# can make the mean infinite.

# %%
ages = {who: age_law(who, 16, 2, 4000) for who in ("fifo", "random")}
mean_age = {who: float((law * torch.arange(1, 4001)).sum()) for who, law in ages.items()}
wider = sum(p * one_term(age, "no cap")[1] / V_FRESH for age, p in enumerate(ages["fifo"][:UPDATES].tolist(), 1))
GROWTHS = (1.05, 1.1, 1.15)
buffers = [
    [who, f"{mean_age[who]:.2f}", int((ages[who] > 0).sum()) if who == "fifo" else "-",
     *[f"{mean_growth(who, 16, 2, g):.2f}" for g in GROWTHS]]
    for who in ages
]  # fmt: skip
table(["who leaves", "mean age", "oldest", *[f"mean of {g:g}^age" for g in GROWTHS]], buffers)
say(f"In the run above, first in, first out, no cap: a replayed term varies {wider:.2f} times as much as a fresh one.")

# %%
assert abs(mean_age["fifo"] - 4.5) < TIGHT and abs(mean_age["random"] - 1 / (1 - (15 / 16) ** 2)) < 1e-9
assert says(buffers, [4.5, 8, 1.25, 1.57, 1.97], [8.26, 1.65, 4.01, float("inf")])
assert all(abs(mean_growth("fifo", 16, 2, g) - sum(g**k for k in range(1, 9)) / 8) < TIGHT for g in GROWTHS)
assert round(wider, 2) == 1.58

# %% [markdown]
# ## Decided, not believed
#
# ```
# python -m theory break K1:bernoulli_allocation
# python -m theory break K3:gap_zero_at_a_budget
# python -m theory break K4:bias_allowed
# python -m theory break K5:existence_without_convexity
# ```

# %%
mutants = [("K4", "bias_allowed"), ("K3", "gap_zero_at_a_budget"), ("K5", "existence_without_convexity")]
broken = {name: break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict", "off by"],
      [[name, "refuted" if m.killed else "survived", f"{m.margin:.3f}"] for name, m in broken.items()])  # fmt: skip

# %%
assert all(m.killed for m in broken.values())
assert [round(m.margin, 3) for m in broken.values()] == [0.077, 1.0, 1.0][: len(broken)]

# %% [markdown]
# ## Take away
#
# * Bias does not average out: a larger budget wants *less* replay.
# * Without a bias, a pool limit or a throughput to meet, the best share is 0 or 1, and the stationary formula returns the
#   *worst* mixture. Check the bend, $C b^2 > D_v D_c$.
# * Tune the share under a ceiling on cost; sweeping a weight can jump over the whole front.
# * If replay ages with the share there may be no equilibrium, or several. Setting the share again and again cannot tell.
#
# **Try.** Replay each response with probability $a$ instead of exactly $aN$ of them. What is added to the error? (K1)
