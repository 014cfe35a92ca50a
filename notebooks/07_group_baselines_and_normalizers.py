# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What a group-relative update really optimizes
#
# **Question.** GRPO draws $M$ responses to a prompt, subtracts the group's mean reward, divides by the group's standard
# deviation, and averages over tokens. Each step looks harmless. *Of which objective is the expected update the gradient, and
# what does each step change?*
#
# $$\frac1D \sum_{i} \frac{R_i - b_i}{\sigma}\, w_i \sum_t s_{it}, \qquad s_{it} = \nabla \log \pi(y_{it} \mid y_{i,<t})$$
#
# | choice | options here | theorem |
# |---|---|---|
# | **baseline** $b_i$ | none; mean of the group; mean of the *others* (leave-one-out) | G1, G2 |
# | **scale** $\sigma$ | 1; the group's standard deviation | G3 |
# | **weight** $w_i$ of a stale response | none, the product of its ratios, capped, masked | G4 |
# | **normalizer** $D$ | tokens of the group; each response's own length, then $M$; a constant | G5, G6 |
#
# Everything below is exact: each *group* of responses is listed with its probability, and nothing is sampled.

# %%
from functools import lru_cache, partial

import group_panels
import plain_panels
import torch
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, reveal, say, show, table

import testbed
from testbed.estimators.difficulty import difficulty_factor
from testbed.estimators.group_gradient import group_coefficients
from testbed.exact.group_updates import expected_group_update, group_compositions
from testbed.policies.families import steps_behind
from theory import break_mutant
from theory.group_worlds import cosine, group_update, update_of
from theory.length_objectives import objective_gradient
from theory.worlds import World

TIGHT = 1e-12

# %% [markdown]
# ## The baseline
#
# A training run of three tokens, reward one for at least two times token 1. The target is its last checkpoint; all lengths
# below are in multiples of the length of its exact gradient $G$.

# %%
HORIZON, UPDATES, RATE = 3, 8, 1.5
task = testbed.PrefixTree(2, HORIZON, [float(f"{code:03b}".count("1") >= 2) for code in range(2**HORIZON)])
checkpoints = [testbed.TabularPolicy.random(2, HORIZON, seed=0, scale=0.5)]
for _ in range(UPDATES):
    now = checkpoints[-1]
    checkpoints.append(testbed.TabularPolicy(now.logits + RATE * testbed.exact_gradient(task, now)))
pi = checkpoints[-1]
gradient = testbed.exact_gradient(task, pi)
fresh = testbed.enumerate_law(task, pi, pi)
success = float(fresh.expect(fresh.batch.reward))


def mean_and_spread(baseline, size):
    """Expected update of a group and the standard deviation of one group's, in multiples of the gradient's length."""
    groups = group_compositions([(fresh, size)])
    c = group_coefficients(groups.batch, baseline, normalizer="constant", constant=float(size))
    each = testbed.gradient_terms(groups.batch, c, pi, torch.ones_like(groups.batch.reward))
    each = each.reshape(len(groups.probs), size, -1).sum(1) / gradient.norm()
    mean = groups.expect(each)
    return (mean * gradient.norm()).reshape(gradient.shape), float(groups.expect((each - mean) ** 2).sum().sqrt())


say(f"The target succeeds with probability {success:.3f}.")

# %% [markdown]
# ## Your prediction
#
# Groups of two, group mean subtracted, divided by two. **How long is the expected update, in multiples of $G$?**

# %%
prediction = None  # the length of the expected update over that of the gradient

# %%
SIZES = (2, 4)
BASELINES = {"none": "none", "group mean": "group_mean", "leave-one-out": "leave_one_out"}
seen = {(name, size): mean_and_spread(option, size) for name, option in BASELINES.items() for size in SIZES}
halved = float(seen["group mean", 2][0].norm() / gradient.norm())
reveal(
    prediction,
    halved,
    "A response's own reward is part of its baseline: in a group of $M$ it cancels one $M$-th of itself, which leaves "
    "$(M-1)/M$. The mean of the *others* knows nothing of the response and costs nothing (theorem G1).",
)
pulls = [
    [name, *[x for m in SIZES for x in (f"{seen[name, m][0].norm() / gradient.norm():.4f}", f"{seen[name, m][1]:.2f}")]]
    for name in BASELINES
]
table(["baseline", *[f"{what}, M = {m}" for m in SIZES for what in ("length of the mean", "spread")]], pulls)

# %%
assert abs(halved - 0.5) < TIGHT and round(success, 3) == 0.93
assert says(pulls, [1, 7.70, 1, 5.44], [0.5, 2.24, 0.75, 2.15], [1, 4.48, 1, 2.87])
for size in SIZES:
    assert (seen["group mean", size][0] - (size - 1) / size * gradient).abs().max() < TIGHT
    assert all((seen[name, size][0] - gradient).abs().max() < TIGHT for name in ("none", "leave-one-out"))
    assert seen["leave-one-out", size][1] < seen["none", size][1]  # here the baseline pays: this is what it is for

# %% [markdown]
# ## Your prediction
#
# Now divide by the group's standard deviation; groups without spread contribute nothing. Rewards are 0 or 1. It is often said
# that this favors hard prompts. Compare a prompt that succeeds once in ten with one that succeeds half of the time: by which
# factor is its gradient multiplied *more*? **Groups of two: what is the ratio of the two factors?**

# %%
prediction = None  # factor of the hard prompt over factor of the even one, M = 2

# %%
RATES = torch.tensor([0.1, 0.5], dtype=torch.float64)


def favor(size):
    """Factor of the prompt with success rate 0.1 over that of the prompt with 0.5."""
    return float(torch.divide(*difficulty_factor(RATES, size)))


limit = float((0.25 / (0.1 * 0.9)) ** 0.5)
reveal(
    prediction,
    favor(2),
    f"In a group of two, a spread is always 1/2: nothing is favored. Nor at $M = 3$. At $M = 4$ the ratio is {favor(4):.3f}, at "
    f"$M = 8$ {favor(8):.3f}, in the limit {limit:.3f} (theorem G3). The size of the group is part of the *objective*.",
)

# %%
assert all(abs(favor(m) - 1) < TIGHT for m in (2, 3)) and abs(favor(4096) - limit) < 1e-3
assert [round(favor(m), 3) for m in (4, 8)] == [1.046, 1.254] and abs(limit - 5 / 3) < TIGHT
for m in (2, 3, 4):  # every group of the run, against the formula: the direction stays, the length is the factor
    counted = group_update(fresh, pi, m, "group_mean", "std")
    assert (counted - difficulty_factor(torch.tensor(success, dtype=torch.float64), m) * gradient).abs().max() < TIGHT

# %% [markdown]
# ## Turn the knobs
#
# Left: the factor. Right: how hard a prompt pulls, relative to one with success rate one half. *Drawn again* replaces groups
# without spread by new ones, as dynamic sampling does: then even groups of two favor the extremes.

# %%
P = torch.linspace(0.005, 0.995, 23 if fast() else 199, dtype=torch.float64)
MANY = [2, 4, 64] if fast() else [2, 3, 4, 5, 6, 8, 12, 16, 32, 64]
FLAT = ("count as zero", "are drawn again")


def factor(p, size, flat):
    """What the gradient of a prompt is multiplied by."""
    value = difficulty_factor(p, size)
    return value / (1 - p**size - (1 - p) ** size) if flat == FLAT[1] else value


def draw_difficulty(size, flat):
    """Draw the factor and the pull against the success rate."""
    hard, even = factor(RATES, size, flat).tolist()
    titles = (f"M = {size}: {hard:.3f} at p = 0.1, {even:.3f} at p = 0.5",
              f"the hard prompt counts {hard / even:.3f} times as much")  # fmt: skip
    sentence = f"groups without spread {flat}: <b>{hard / even:.4f}</b> (factors {hard:.4f} and {even:.4f})"
    return group_panels.difficulty(P, partial(factor, flat=flat), size, titles), f"M = {size}, {sentence}"


difficulty = Control(
    draw_difficulty, size=Choice("responses per group, M", MANY, 4), flat=Choice("groups without spread", FLAT, FLAT[0])
)
difficulty.show()

# %%
again = float(factor(RATES, 2, FLAT[1])[0] / factor(RATES, 2, FLAT[1])[1])
graded = testbed.PrefixTree(3, 1, rewards=[0.0, 0.3, 1.0])  # three reward values: the direction goes, too
author = testbed.TabularPolicy.from_probs(torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64))
scaled = group_update(testbed.enumerate_law(graded, author, author), author, 4, "group_mean", "std")
turned = cosine(scaled, testbed.exact_gradient(graded, author))
say(
    f"With groups of two drawn again, the hard prompt counts {again:.2f} times as much. With *three* reward values "
    f"(0, 0.3 and 1) not even the direction survives: the cosine with the gradient is {turned:.3f} at $M = 4$."
)

# %%
for at in settings(difficulty):
    assert says(told(difficulty, **at), group_panels.difficulty_by_hand(at["size"], at["flat"] == FLAT[1]))
assert round(turned, 3) == 0.885 and abs(again - 0.25 / 0.09) < TIGHT and all(favor(m) >= 1 - TIGHT for m in MANY)

# %% [markdown]
# ## Stale members in a group
#
# Some of the $M = 4$ responses were drawn by an older checkpoint; the others are fresh. A baseline is free because scores
# average to zero, and for a stale response that is a statement about its *weight*: $E_\mu[w\, s] = 0$. The product of all
# ratios has it. No weight, a capped or a masked one has not, and leave-one-out adds (theorem G4)
#
# $$-\frac{M_s}{M}\, E[b]\, E_\mu[w\, s] .$$

# %%
SIZE = 4
WEIGHTS = {  # name: rule, and its parameters for a cap
    "product of ratios": ("sequence_product", lambda cap: {}),
    "capped": ("seq_tis", lambda cap: {"cap": cap}),
    "masked": ("seq_mis", lambda cap: {"low": 0.0, "cap": cap}),
    "no weight": ("none", lambda cap: {}),
}


@lru_cache
def group_of(age, stale):
    """All groups with so many stale responses."""
    law = testbed.enumerate_law(task, pi, testbed.PrefixSchedule((steps_behind(checkpoints, age),), testbed.one()))
    return group_compositions([(law, stale), (fresh, SIZE - stale)])


@lru_cache
def mixed(age, stale, weight, cap, baseline):
    """Expected update of a group with stale members."""
    rule, parameters = WEIGHTS[weight]
    return update_of(group_of(age, stale), pi, baseline, rule=rule, **parameters(cap))


def drift_cost(age, stale, weight, cap):
    """What the formula says leave-one-out adds, from a plain list of the responses."""
    old = plain_panels.listed(pi.table.exp(), steps_behind(checkpoints, age).table.exp(), 2)
    others = ((stale - 1) * old.level() + (SIZE - stale) * success) / (SIZE - 1)
    return -stale / SIZE * others * torch.tensor(old.update(plain_panels.WEIGHTS[weight](old.ratio, cap)))


def error(update):
    """Distance from the gradient, in multiples of its length."""
    return float((update - gradient).norm() / gradient.norm())


def draw_stale(age, cap, stale):
    """Draw the error of the expected update against the number of stale members, without and with leave-one-out."""
    errors = {
        name: {w: [error(mixed(age, k, w, cap, option)) for k in range(SIZE + 1)] for w in WEIGHTS}
        for name, option in (("no baseline", "none"), ("leave-one-out", "leave_one_out"))
    }
    now = {w: [lines[w][stale] for lines in errors.values()] for w in WEIGHTS}
    numbers = [f"{w}: {a:.3f} without, <b>{b:.3f}</b> with leave-one-out" for w, (a, b) in now.items()]
    return group_panels.stale(errors, stale), "; ".join(numbers)


mixing = Control(
    draw_stale,
    age=Choice("updates since the stale ones were drawn", [2, 4, 8] if fast() else range(1, UPDATES + 1), UPDATES),
    cap=Choice("cap (mask above it)", [1.0, 1.5, 3.0] if fast() else [1.0, 1.25, 1.5, 1.75, 2.0, 3.0], 1.5),
    stale=Choice("stale responses", range(SIZE + 1), 2),
)
mixing.show()

# %%
for age, stale in ((4, 1), (8, 2), (8, 4)):
    for baseline, shrunk in (("none", 1), ("leave_one_out", 1), ("group_mean", 0.75)):  # only the factor (M-1)/M
        assert (mixed(age, stale, "product of ratios", 1.5, baseline) - shrunk * gradient).abs().max() < TIGHT
    for weight in WEIGHTS:
        apart, plain = (mixed(age, stale, weight, 1.5, baseline) for baseline in ("leave_one_out", "none"))
        assert (apart - plain - drift_cost(age, stale, weight, 1.5)).abs().max() < TIGHT  # G4
for at in settings(mixing):
    assert says(told(mixing, **at), group_panels.stale_by_hand(checkpoints, SIZE, **at))
bare, cut = ([error(mixed(8, 2, w, 1.5, b)) for b in ("none", "leave_one_out")] for w in ("no weight", "capped"))
assert bare[1] > 1.5 * bare[0] and cut[1] < 0.2 * cut[0]  # without a weight it does harm, a cap it repairs

# %% [markdown]
# ## The length of an answer
#
# Another task. The first token decides: 0 is right, 1 is wrong. Then come words without any effect, until an end token or
# until there are four tokens. *The reward does not depend on the length.* Groups of two, group mean, no division by a spread.
#
# **Your prediction.** Train under a mean over each response's tokens, then over responses (the sequence mean). What happens to
# the mean length of a wrong answer? `1` it grows, `0` it stays, `-1` it shrinks.

# %%
prediction = None  # 1, 0 or -1

# %%
LONG, PAIR, STEPS = 4, 2, (4 if fast() else 16)
answers = testbed.PrefixTree(3, LONG, [float(code < 3 ** (LONG - 1)) for code in range(3**LONG)], eos=2)
nodes = [[0.2, 0.8, 0.0]] + [[0.3, 0.3, 0.4]] * ((3**LONG - 1) // 2 - 1)  # no answer ends before its first token
begin = testbed.TabularPolicy.from_probs(torch.tensor(nodes, dtype=torch.float64))
NORMALIZERS = {"sequence_mean": 8.0, "token_mean": 8.0, "constant": 3.0}  # and the step size of each


def enumerated(law, now, normalizer, baseline):
    """Expected update of a pair: every pair of answers with its probability."""
    pairs, constant = group_compositions([(law, PAIR)]), 2.0 * PAIR if normalizer == "constant" else None
    c = group_coefficients(pairs.batch, baseline, normalizer=normalizer, constant=constant)
    return expected_group_update(pairs, now, c)


@lru_cache
def trained(normalizer, baseline, update=enumerated):
    """Success rate, mean length of right and of wrong answers, before each step of exact expected updates."""
    now, path = begin, []
    for _ in range(STEPS + 1):
        law = testbed.enumerate_law(answers, now, now)
        right, length = law.batch.reward, law.batch.lengths.double()
        p = float(law.expect(right))
        path.append((p, float(law.expect(right * length)) / p, float(law.expect((1 - right) * length)) / (1 - p)))
        now = testbed.TabularPolicy(now.logits + NORMALIZERS[normalizer] * update(law, now, normalizer, baseline))
    return path


start, *_, final = trained("sequence_mean", "group_mean")
reveal(
    prediction,
    round(torch.tensor(final[2] - start[2]).sign().item()),
    f"After {STEPS} updates wrong answers have {final[2]:.3f} tokens instead of {start[2]:.3f}, right ones {final[1]:.3f}. "
    "A negative advantage is divided by its length: long ones are punished less per token, short right ones gain more.",
)

# %%
show(group_panels.answer_lengths({n.replace("_", " "): trained(n, "group_mean") for n in NORMALIZERS}))
ends = {(n, b): trained(n, b)[-1] for n in NORMALIZERS for b in ("none", "group_mean")}
outcomes = [[n.replace("_", " "), b.replace("_", " "), *[f"{x:.3f}" for x in end]] for (n, b), end in ends.items()]
table(["normalizer", "baseline", "success", "length of right answers", "of wrong ones"], outcomes)

# %%
for (normalizer, baseline), (p, right, wrong) in ends.items():
    assert p > start[0]
    if normalizer == "constant":
        assert abs(right - start[1]) < 1e-9 and abs(wrong - start[2]) < 1e-9
    else:
        assert right < start[1] - 0.01  # and it is the baseline that pays for length:
        assert wrong > start[2] + 0.01 if baseline == "group_mean" else abs(wrong - start[2]) < 1e-9
assert ends["token_mean", "group_mean"][2] < ends["sequence_mean", "group_mean"][2]  # the others' tokens dilute it

# %% [markdown]
# **What is optimized.** Under the sequence mean, the update is the gradient of $E[R/L]$ minus $b$ times that of $E[1/L]$: every
# baseline changes the objective, and a positive one pays for length (G6). The token mean does the same through the length of the
# whole group. A constant divisor leaves the gradient of $E[R]$ alone, and baselines are free again (G5). So the runs can be
# repeated without groups: a response is worth its gain over its divisor, averaged over its partner; climb *that* mean.


# %%
def climbed(law, now, normalizer, baseline):
    """Gradient of the objective itself; who the partner may be is held fixed, two members count."""
    others, long = law.batch.reward, law.batch.lengths.double()

    def worth(reward, length):
        gain = reward[:, None] - (baseline == "group_mean") * (reward[:, None] + others) / 2
        divisor = {"sequence_mean": 2 * length[:, None], "token_mean": length[:, None] + long, "constant": 4.0}
        return 2 * (gain / divisor[normalizer]) @ law.probs

    return objective_gradient(World(name="answers", env=answers, target=now, schedule=now), worth)


repeated = {case: trained(*case, climbed) for case in ends}
assert says(outcomes, [path[-1] for path in repeated.values()])
for case, path in repeated.items():
    assert (torch.tensor(path) - torch.tensor(trained(*case))).abs().max() < 1e-9  # every step

# %% [markdown]
# **And micro-batches.** Averaging the token means of parts is not the token mean of the whole:

# %%
batch = group_panels.four_answers()
whole = group_coefficients(batch, "none")[:, 0]
parts = group_coefficients(batch.replaced(group=torch.tensor([0, 0, 1, 1])), "none")[:, 0] / 2
token_weights = [[i + 1, int(batch.lengths[i]), f"{whole[i]:.4f}", f"{parts[i]:.4f}"] for i in range(4)]
table(["response", "tokens", "weight of a token, whole batch", "mean of two parts"], token_weights)

# %%
assert says(token_weights, [1, 1, 1 / 8, 1 / 4], [2, 1, 1 / 8, 1 / 4], [3, 4, 1 / 8, 1 / 12], [4, 2, 1 / 8, 1 / 12])

# %% [markdown]
# ## Decided, not believed
#
# ```
# python -m theory break G1:self_in_leave_one_out
# python -m theory break G3:three_values
# python -m theory break G4:weights_capped
# python -m theory break G6:constant_divisor
# ```

# %%
mutants = [("G1", "self_in_leave_one_out"), ("G4", "weights_capped"), ("G6", "constant_divisor")]
broken = {name: break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict", "off by"],
      [[name, "refuted" if m.killed else "survived", f"{m.margin:.3f}"] for name, m in broken.items()])  # fmt: skip

# %%
assert all(m.killed for m in broken.values())
assert [round(m.margin, 3) for m in broken.values()] == [0.5, 0.125, 0.639][: len(broken)]

# %% [markdown]
# ## Take away
#
# * The group mean costs the factor $(M-1)/M$ and no direction; leave-one-out costs nothing.
# * Dividing by the spread reweights prompts by difficulty from $M = 4$ on, and turns the direction for graded rewards.
# * On stale members a baseline is free where weighted scores average to zero: under the full product, not under a cap.
# * Dividing by lengths changes the objective; with a baseline, wrong answers grow. A constant divisor changes nothing.
#
# **Try.** Give every answer one more unit of reward. Which rows of the last training table change, and which cannot?
