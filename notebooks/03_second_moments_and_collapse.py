# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Second moments: how response weights collapse before they explode
#
# **Question.** A token's ratio has mean one and a spread that looks harmless. The weight of a response is the product of
# its ratios. *How fast does the spread of the product grow, what does a typical response weigh long before that shows,
# and would the numbers in your log tell you?*
#
# | word | meaning |
# |---|---|
# | $\rho_t$, $W$ | likelihood ratio of token $t$, target over the behavior that drew it; their product over a response |
# | $d_2$ | $E_\mu[W^2]$, the **second moment**; $d_2 - 1$ is the variance of $W$ |
# | $D_2$ | $\log d_2$, the **Renyi-2 divergence** |
# | **tilted** | averaged with weights $W^2$: where large weights are, not where the sampler is |
# | **Kish's ESS** | $(\sum w)^2 / \sum w^2$ of a batch, its "effective sample size"; for $n \to \infty$ it tends to $n / d_2$ |
#
# Everything below is exact: each response, or each count of words, is listed with its probability.

# %%
from functools import lru_cache
from itertools import pairwise
from math import exp, log, sqrt

import moment_panels
import torch
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, grid, reveal, say, table
from coin_tosses import coin, coin_law, coin_weights, half_of_the_mean, kept, one_token, reached, summary

import testbed
from testbed.exact.iid_weights import iid_weight_law, lower_median
from testbed.exact.ratio_moments import ratio_moment, tilted_mean
from testbed.exact.second_moments import segment_moments, start_d2
from testbed.sample_data import BEHAVIORS, next_token_laws
from testbed.stats import kl
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory import break_mutant

TREE = testbed.PrefixTree(2, 2, rewards=[1.0] * 4)
TIGHT = 1e-12
LONG = 1e-11  # for sums over the counts of words in thousands of tokens, whose factorials cost digits

# %% [markdown]
# ## The smallest example
#
# Two tokens, a boundary between them. The first is a fair coin for the sampler, but the target prefers token 1. After
# token 1 the sampler is badly off; after token 0 it is the target itself.


# %%
def rows(*probs):
    """Return the policy that draws token 1 with these probabilities at the start, after token 0, after token 1."""
    return testbed.TabularPolicy.from_probs(torch.tensor([[1 - p, p] for p in probs], dtype=torch.float64))


@lru_cache
def setting(goes, late):
    """Law, target and schedule: the target goes to token 1 with probability `goes`; there the sampler draws 1 with `late`."""
    target, mu = rows(goes, 0.5, 0.1), rows(0.5, 0.5, late)
    schedule = testbed.PrefixSchedule((mu, mu), segment_of=testbed.cuts([1]))
    return testbed.enumerate_law(TREE, target, schedule), target, schedule


law, target, schedule = setting(0.9, 0.9)
log_weight = segment_end_log_ratios(law.batch)
weight = log_weight.exp()
d2 = start_d2(law, TREE, target, schedule)
found = segment_moments(law, TREE, target, schedule)
responses = [
    ["".join(map(str, y)), f"{p:.2f}", f"{w[0]:.2f}", f"{w[1]:.3f}", f"{d[1]:.4f}"]
    for y, p, w, d in zip(law.batch.tokens.tolist(), law.probs, weight, d2, strict=True)
]
table(["response", "probability", "W after token 1", "W", "d2 of the second token, seen from the first"], responses)
say(
    f"The first token has $d_2$ = {found.second[0]:.2f}. The second one has $d_2$ = {d2[0, 1]:.0f} or {d2[-1, 1]:.2f}, "
    f"each half of the time: {found.average[1]:.2f} on average."
)

# %%
later = 73 / 9
assert says([row[1:] for row in responses], [0.25, 0.2, 0.2, 1] * 2, [0.05, 1.8, 16.2, later], [0.45, 1.8, 0.2, later])
assert abs(float(found.second[0]) - 1.64) < TIGHT and abs(float(found.average[1]) - (1 + later) / 2) < TIGHT
assert abs(float(d2[0, 1]) - 1) < TIGHT and abs(float(d2[-1, 1]) - later) < TIGHT
assert abs(float(law.expect(weight[:, 1])) - 1) < TIGHT

# %% [markdown]
# ## Your prediction
#
# **What is the second moment $E_\mu[W^2]$ of the whole weight?** Put a number in place of `None`.

# %%
prediction = None  # the second moment of W after both tokens

# %%
averages, sups, truth = float(found.average.prod()), float(found.largest.prod()), float(found.second[-1])
reveal(
    prediction,
    truth,
    f"Multiplying the averages gives {averages:.2f}, far too little: weights are large after token 1, and there the second "
    f"token is worst. The product of the *largest* values, {sups:.2f}, is safe.",
    within=0.05,
)

# %%
assert abs(truth - 13.16) < TIGHT
assert (round(averages, 2), round(sups, 2)) == (7.47, 13.30)

# %% [markdown]
# ## The growth law
#
# **S9.** $E_\mu[W_{(k)}^2] = E_\mu[W_{(k-1)}^2\, d_{2,k}(H)]$, with $H$ the history in which segment $k$ starts. So each
# segment multiplies the second moment by its $d_2$ averaged under the *tilted* law, $\nu \propto \mu\, W_{(k-1)}^2$.
# **S10.** The largest $d_2$ over reachable histories gives a bound; the average under the sampler gives none.
#
# Where does the target go, and how wrong is the sampler there? Move both.

# %%
LATE = [0.1, 0.5, 0.9, 0.95] if fast() else [round(0.05 * i, 2) for i in range(2, 20)]
CURVE = grid(0.1, 0.95, 85)


@lru_cache
def products(goes, late):
    """Second moment, product of averages, product of largest values, and the history's law: drawn, target's, tilted."""
    law, target, schedule = setting(goes, late)
    found = segment_moments(law, TREE, target, schedule)
    first = (law.batch.tokens[:, 0] == 1).double()
    so_far = segment_end_log_ratios(law.batch)[:, 0]
    shares = [float(tilted_mean(first, law.log_prob, so_far, power)) for power in (1.0, 2.0)]
    values = {"second": found.second[-1], "average": found.average.prod(), "largest": found.largest.prod()}
    return {k: float(v) for k, v in values.items()}, [float(law.expect(first)), *shares], found.factor.tolist()


def draw_growth(goes, late):
    """Draw the three products against how wrong the sampler is, and where each law puts the history."""
    now, shares, factor = products(goes, late)
    curves = {name: [products(goes, x)[0][name] for x in CURVE] for name in now}
    return moment_panels.growth(CURVE, curves, (late, now), shares), (
        f"exact <b>{now['second']:.4f}</b> = {factor[0]:.4f} x {factor[1]:.4f}; "
        f"averages {now['average']:.4f}; largest {now['largest']:.4f}"
    )


histories = Control(
    draw_growth,
    goes=Choice("target: token 1 first", [0.1, 0.3, 0.5, 0.7, 0.9], 0.9),
    late=Choice("sampler: token 1 after token 1", LATE, 0.9),
)
histories.show()

# %%
for goes in (0.1, 0.5, 0.9):
    for late in (*LATE, *CURVE):
        now, shares, factor = products(goes, late)
        assert abs(now["second"] - factor[0] * factor[1]) < 1e-10  # S9
        assert now["second"] <= now["largest"] * (1 + TIGHT)  # S10
        assert abs(shares[1] - goes) < TIGHT  # the weight itself tilts to the target's law
        assert goes != 0.5 or abs(now["average"] - now["second"]) < 1e-10  # no tilt, no error
for at in settings(histories):  # each number it shows, by a line of arithmetic
    assert says(told(histories, **at), moment_panels.growth_by_hand(**at))
assert products(0.1, 0.9)[0]["average"] > 3 * products(0.1, 0.9)[0]["second"]  # averages can err either way

# %% [markdown]
# ## What adds up over tokens
#
# Trainers log a divergence per token. KL adds up over tokens when averaged over the *target's* histories. $D_2$ adds up
# too, but with the logarithm *outside* an average over *tilted* histories (**S11**). Nothing else gives the response's $D_2$.

# %%
before = torch.cat([torch.zeros_like(log_weight[:, :1]), log_weight[:, :-1]], 1)
whole = float(testbed.renyi2(weight[:, 1], probs=law.probs))
sums = {
    "log of the tilted average (S11)": float(found.factor.log().sum()),
    "tilted average of the log": float(tilted_mean(d2.log(), law.log_prob, before).sum()),
    "log of the sampler's average": float(found.average.log().sum()),
    "sampler's average of the log": float(law.expect(d2.log()).sum()),
}
shares = [[name, f"{value:.4f}", f"{value / whole:.1%}"] for name, value in sums.items()]
table(["token by token, then summed", "nats", "of the response's D2"], shares)

# %%
exact_sum, inside, *under_sampler = sums.values()
two = moment_panels.products_by_hand(0.9, 0.9)
by_hand = [log(two["later"]), two["tilted"] * log(two["after"]), log((1 + two["after"]) / 2), log(two["after"]) / 2]
assert says(shares, [[log(1.64) + x, (log(1.64) + x) / log(13.16)] for x in by_hand])
assert abs(exact_sum - whole) < TIGHT and abs(whole - log(13.16)) < TIGHT
assert inside < exact_sum - 1e-3 and max(under_sampler) < 0.8 * whole  # Jensen, strictly

# %% [markdown]
# ## Long responses
#
# Now the tokens are independent, so responses of any length can be treated exactly: the sampler tosses a fair coin, the
# target's coin lands 1 somewhat more often. A weight depends only on the number of ones.

# %%
say(f"Where the target draws 1 with probability $0.6$, a token has $d_2$ = **{one_token(0.6):.2f}**. Nearly on-policy?")

# %%
assert abs(one_token(0.6) - 1.04) < TIGHT
small, listed = coin_law(0.6, 8), coin_weights(0.6, 8)[0]
assert torch.allclose(testbed.weigh("exact", small.batch).value[:, 0].log(), listed, atol=1e-10)
assert abs(testbed.second_moment(listed.exp(), probs=small.probs) - one_token(0.6) ** 8) < 1e-10

# %% [markdown]
# ## Your prediction
#
# Responses of 256 such tokens. The weights have mean one. They are capped at 10, which touches few of them. **What is the
# mean weight after the cap?**

# %%
prediction = None  # the mean of min(W, 10) for 256 tokens

# %%
log_w, probs = coin_weights(0.6, 256)
touched, left, middle = float(probs[log_w > log(10)].sum()), kept(0.6, 256, 10.0), lower_median(log_w, probs)
reveal(
    prediction,
    left,
    f"The cap acts on {touched:.1%} of the responses, but most of the mean sat there. The median weight is "
    f"{exp(middle):.4f}: the update of a typical response is all but switched off.",
    within=0.02,
)

# %%
assert (round(left, 4), round(touched, 3), round(exp(middle), 4)) == (0.2852, 0.010, 0.0054)

# %% [markdown]
# ## Collapse, then explosion
#
# **S12.** $E\,W^2$ can only grow with length, at least like $(1 + \chi^2)^T$; $E \min(W, c)$ can only fall, whatever $c$,
# and is at most $\sqrt{c}\,\prod_t \mathrm{BC}_t$ with $\mathrm{BC} = \sum_y \sqrt{\pi \mu}$. A typical weight falls like
# $e^{-T\,\mathrm{KL}(\mu \| \pi)}$. The right panel shows why: the responses that are drawn and the responses on which the
# mean of one rests move apart.

# %%
LENGTHS = [2**e for e in range(12)]
DENSE = sorted({round(2**e) for e in grid(0.0, 11.0, 44)})


def draw_collapse(p, length, cap):
    """Draw growth and collapse against the length; at this length, what is drawn and what the mean is made of."""
    now = summary(p, length, cap)
    log_w, probs = coin_weights(p, length)
    said, share = f"{length} token{'s' * (length > 1)}", 100 * half_of_the_mean(p, length)
    rests = f"half of the mean rests on {share:.2g}% of the responses"
    titles = (f"{said}: a typical response weighs {now[3]:.2g}", rests)
    curves = list(zip(*(summary(p, t, cap) for t in DENSE), strict=True))
    picture = moment_panels.collapse(
        DENSE, curves, (length, now), cap, log_w / log(10), (probs, probs * log_w.exp()), titles
    )
    return picture, (
        f"{said}: E W^2 = <b>{now[0]:.4g}</b>; mean after the cap <b>{now[2]:.4f}</b>; median <b>{now[3]:.4g}</b>; "
        f"one response in a thousand reaches {now[1]:.4g}; {rests}"
    )


collapse = Control(
    draw_collapse,
    p=Choice("target's probability of a one", [0.52, 0.55, 0.6, 0.65, 0.7], 0.6),
    length=Choice("tokens per response", LENGTHS, 256),
    cap=Choice("cap", [1.0, 2.0, 10.0, 100.0], 10.0),
)
collapse.show()

# %%
for p in (0.55, 0.6, 0.7):
    affinity = one_token(p, 0.5)
    fall = float(kl((coin(p) / coin(0.5)).log(), probs=coin(0.5), estimator="k1"))
    for cap in (1.0, 10.0):
        means = [kept(p, t, cap) for t in DENSE]
        assert all(later <= earlier + LONG for earlier, later in pairwise(means))  # only ever falls
        assert all(m <= sqrt(cap) * affinity**t + LONG for t, m in zip(DENSE, means, strict=True))
    for t in (64, 2048):
        log_w, probs = coin_weights(p, t)
        deviation = (probs * log_w**2).sum() - (probs * log_w).sum() ** 2
        assert abs(lower_median(log_w, probs) + t * fall) <= float(deviation.sqrt()) + LONG  # S12: the median's rate
        shared = torch.minimum(probs, probs * log_w.exp()).sum()  # area the two humps share
        assert abs(kept(p, t, 1.0) - float(shared)) < LONG
for at in settings(collapse):  # each number it shows, from exact counts
    assert says(told(collapse, **at), moment_panels.collapse_by_hand(**at))
assert reached(0.6, 2048, 1e-3) < 1 < reached(0.6, 256, 1e-3)  # in the end, not one in a thousand weighs one
medians = [exp(lower_median(*iid_weight_law(coin(1 / 3), coin(2 / 3), t))) for t in (1, 2, 3)]
assert [round(m, 9) for m in medians] == [0.5, 1.0, 0.5]  # the median alone is not monotone

# %% [markdown]
# At a cap of one the mean that is left is the area the two humps share. Explosion is real, but one does not see it: $E\,W^2$
# rests on responses that a batch does not contain.
#
# ## A language model's tokens
#
# Next-token laws of a small language model at twelve positions: one target, five samplers. Suppose a response went through
# these positions over and over, independently. Then $D_2$, KL and $\log \mathrm{BC}$ add up exactly. (Rare words were
# recorded as one, which can only make the samplers look better.)

# %%
laws = next_token_laws()
token = {
    name: (
        float(ratio_moment(laws.logp_target, laws.logp_behavior[name]).log().mean()),
        float(kl(laws.logp_target - laws.logp_behavior[name], probs=laws.logp_behavior[name].exp(), estimator="k1"))
        / 12,
        -float(ratio_moment(laws.logp_target, laws.logp_behavior[name], 0.5).log().mean()),
    )
    for name in BEHAVIORS
}
explodes = {name: log(1000) / divergence for name, (divergence, _, _) in token.items()}
collapses = {name: log(2 * sqrt(10)) / rate for name, (_, _, rate) in token.items()}
samplers = [
    [f"`{name}`", f"{a:.4f}", f"{b:.4f}", f"{explodes[name]:,.0f} tokens", f"{collapses[name]:,.0f} tokens"]
    for name, (a, b, _) in token.items()
]
table(["sampler", "D2 per token", "KL per token: the median's fall", "second moment 1,000 after",
       "a cap of 10 has lost half the mean, at the latest, after"], samplers)  # fmt: skip
say(
    f"A stale checkpoint in bfloat16 (`v0_bf16`): {token['v0_bf16'][0]:.2f} nats of $D_2$ per token sound small. Yet "
    f"under a cap of 10, after {collapses['v0_bf16']:.0f} tokens more than half of the mean weight is gone. One engine "
    "quantized too far (`v1_int8_dynamic`) is beyond repair within a handful of tokens."
)  # fmt: skip

# %%
assert laws.logp_target.shape == (12, 4096) and len(BEHAVIORS) == 5
assert says(samplers, [0.1025, 0.0840, 67, 97], [0.0073, 0.0040, 946, 1885], [0.1047, 0.0857, 66, 95],
            [0.0052, 0.0029, 1329, 2608], [2.6022, 2.6289, 3, 4])  # fmt: skip
for _, fall, rate in token.values():
    assert 0 < 2 * rate < fall  # Jensen: at most half as fast as the median

# %% [markdown]
# ## Would the log tell you?
#
# **S13.** Kish's ESS lies between 1 and $n$ whatever happens, so it cannot follow $n / d_2$ below one. And a cap can only
# raise it. Below: its exact average over *all* batches of four responses, the target's coin landing 1 with probability $0.7$.


# %%
def kish(law, weights):
    """Average of the ESS over all batches of four."""
    each = testbed.batch_statistic(law, 4, lambda rows: torch.tensor([float(testbed.ess(w)) for w in weights[rows]]))
    return float(each.mean)


seen = {}
for length in (1, 4, 16) if fast() else (1, 2, 4, 8, 16):
    law = coin_law(0.7, length)
    raw = testbed.weigh("sequence_product", law.batch).value[:, 0]
    capped = testbed.weigh("seq_tis", law.batch, cap=2.0).value[:, 0]
    limit = float(testbed.ess(raw, probs=law.probs, n=4))
    seen[length] = (limit, kish(law, raw), kish(law, capped), float(law.expect(capped)))
reports = [[t, *(f"{x:.2f}" for x in values)] for t, values in seen.items()]
table(["tokens", "4 / d2", "ESS a batch reports", "ESS of weights capped at 2", "mean of those weights"], reports)
say(
    f"At 16 tokens four responses are worth **{seen[16][0]:.2f}** of one, the batch reports **{seen[16][1]:.2f}**, and after the "
    f"cap **{seen[16][2]:.2f}**, although the mean weight has fallen to {seen[16][3]:.2f}."
)

# %%
for length, (limit, reported, after_cap, mean) in seen.items():
    assert limit < reported <= after_cap + TIGHT and reported >= 1
    assert abs(mean - kept(0.7, length, 2.0)) < 1e-10
assert says(reports, [moment_panels.kish_by_hand(0.7, length, 2.0) for length in seen])
assert [round(x, 2) for x in seen[16]] == [0.37, 2.11, 2.28, 0.55]

# %% [markdown]
# ## Decided, not believed
#
# ```
# python -m theory show S12
# python -m theory break S9:history_ignored
# python -m theory break S10:averages_for_sups
# python -m theory break S11:averaged_under_behavior
# python -m theory break S12:masked_not_capped
# python -m theory break S13:mask_in_place_of_cap
# ```

# %%
mutants = [("S10", "averages_for_sups"), ("S9", "history_ignored"), ("S12", "median_under_target")]
broken = {f"{theorem}:{name}": break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict", "off by"],
      [[name, "refuted" if m.killed else "survived", f"{m.margin:.3f}"] for name, m in broken.items()])  # fmt: skip

# %%
assert all(m.killed for m in broken.values())
assert [round(m.margin, 3) for m in broken.values()] == [0.432, 0.585, 0.66][: len(broken)]

# %% [markdown]
# ## Take away
#
# * Second moments multiply under the law tilted by $W^2$. Averages over the sampler's own prefixes can be far too small.
# * Long before $E\,W^2$ shows, a typical weight is near zero, and a cap removes most of the mean: weighting a long response as a
#   whole silently stops learning from it.
# * Look at the *mean* of the weights you apply, and at $D_2$. The effective sample size of a batch is blind to both.
#
# **Try.** At which length does the weight that one response in a thousand reaches turn around? Double the divergence per token:
# by what factor does that length shrink?
