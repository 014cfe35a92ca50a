# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stale training, live
#
# **Question.** In asynchronous reinforcement learning the policy that writes is older than the policy that learns. *What does
# that do to learning, what do corrections do about it, and what would you see in the log?*
#
# We train a small transformer, here, while you watch: one-digit additions, a checker that says right or wrong, GRPO. A run takes
# seconds, so it can be repeated, late or in time, under any rule; and one moment of it can be frozen and decided exactly.
#
# | word | meaning |
# |---|---|
# | **version** | updates that the weights have seen; **age** of a token: updates between writing and using it |
# | **ratio** $k$ | trainer's probability of a token over the one with which it was drawn |
# | **push** | weight times advantage of a token: what multiplies its score in the gradient |
# | `none`, `exact` | weight one; the token's ratio, as it is |
# | `ppo_clip` | the ratio, but zero once it has left a band in the direction of the push |
# | `spire` | the product of the response's ratios, capped |
# | `topr` | weight one on what is reinforced; on what is pushed down the product, at most one |
#
# Task and model are tiny and the seeds are few. Differences come with intervals; what lies within them is not claimed.

# %%
import committed_studies
import numpy as np
import stale_by_hand as by_hand
import stale_panels as panels
import stale_runs as lab
import torch
import watched_clock
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, reveal, say, show, table
from live_display import Live

import testbed
from theory import break_mutant

SEEDS, FEWER_SEEDS, AGE, UPDATES = (2, 2, 8, 6) if fast() else (5, 3, 8, 9)

# %% [markdown]
# ## Where training starts
#
# The warm start has read answers, half of them those of other problems. How often is it right? The log of a run *samples* that.
# Here it can be written down: a right answer is the sum, with a leading zero or without, and the end.

# %%
first = lab.watched({"updates": 1, "rule": "none", "system": "synchronous"}, seed=0, keep=[0])
task, begun = first.run.env, first.policy(0)
sampled, exactly = first.run.evaluations[0][1], by_hand.right_share(begun, task, first.run.prompts)
say(
    f"Problems such as `{lab.words_of(task, 75)}`: right in {sampled:.3f} of the sampled answers, with probability {exactly:.3f}."
)

# %%
for x in (75, 7):
    everything = testbed.enumerate_law(task, begun, begun, group=x)
    assert abs(everything.expect(everything.batch.reward) - by_hand.right_share(begun, task, torch.tensor([x]))) < 1e-12
assert abs(sampled - exactly) < 5 * (0.25 / first.run.config.evaluate_responses) ** 0.5

# %% [markdown]
# ## Who waits for whom
#
# An engine and a trainer, in simulated seconds. A decode step writes one token of every running response. In the synchronous
# loop the trainer waits while responses are written, and the engine waits while the trainer works.
#
# **Your prediction.** An update takes a tenth of a second, and writing about as long. *Which share of the time is the
# synchronous trainer idle?*

# %%
prediction = None  # idle share of the trainer

# %%
alone = watched_clock.timeline("synchronous", 0.1, UPDATES)
reveal(
    prediction,
    alone.trainer_idle,
    "One of the two is busy at any time, never both. Asynchronous systems buy this time back, and pay with age.",
    0.05,
)

# %%
assert np.allclose(watched_clock.by_hand(alone), [alone.engine_idle, alone.trainer_idle, 0, 0])

# %% [markdown]
# Turn the knobs. Each row is a response, each cell a token, its color the version of the weights that wrote it; below, in the
# color of the version that it makes, the trainer at work (black: the push). Dotted: new weights arrive. Pale: not yet used. The
# policy here is untrained, so that some responses are long. Where does the version change *inside* a response? Who still waits?


# %%
def draw_timeline(system, seconds):
    """Draw the first updates of a system."""
    found = watched_clock.timeline(system, seconds, UPDATES)
    title = f"{system}: engine idle {found.engine_idle:.1%}, trainer idle {found.trainer_idle:.1%} of the time"
    ages = f"age of a token when it is used: <b>{found.staleness:.2f}</b> on average, at most {found.oldest}"
    return panels.timeline(found, title), ages


SYSTEMS = ["synchronous", "one_step_off", "steps_off", "areal", "pipeline_rl", "april"]
waiting = Control(
    draw_timeline,
    system=Choice("system", SYSTEMS, "pipeline_rl"),
    seconds=Choice("seconds per update", [0.05, 0.1, 0.2], 0.1),
)
waiting.show()

# %%
for at in settings(waiting):
    found = watched_clock.timeline(at["system"], at["seconds"], UPDATES)
    assert says(told(waiting, **at), watched_clock.by_hand(found))
    assert found.system.bound is None or found.oldest <= found.system.bound

# %% [markdown]
# ## In time, and eight updates late
#
# Now training. The instrument is `steps_off`: every token comes from the weights of exactly eight updates ago. The figure is
# redrawn while you wait. Thin: seeds. Heavy: interquartile mean. On the right the largest $|\log k|$ of a batch.
#
# **Your prediction.** In time, most problems are answered right in the end. *And eight updates late, without a weight?*

# %%
prediction = None  # final reward, eight updates late, without a weight

# %%
LATE = {"system": "steps_off", "system_params": {"ahead": AGE}}
race, arms = lab.Race(), {"synchronous": {"rule": "none", "system": "synchronous"}, "none": {"rule": "none", **LATE}}


def train(some, seeds, shown, keep=()):
    """Train arms with the same seeds and draw as they go; the intervals come when it is over."""
    live = Live(lambda: panels.race(race, shown, over=False))
    race.run(some, seeds, live, keep)
    live.draw = lambda: panels.race(race, shown, over=True)
    return live.last()


in_time_or_late = train(arms, SEEDS, list(arms))

# %%
because = "As many responses, the same rule. It learns at first, and then loses what it has learned."
reveal(prediction, race.judged("none").value, because, 0.05)

# %%
assert all(by_hand.same_log(found) for name in arms for found in race.runs[name])  # the whole log, from the batches
finals = {name: by_hand.interval(by_hand.finals(race.runs[name]), lab.SEEDS[name]["final"]) for name in arms}
assert says(in_time_or_late.words, list(finals.values())) and (fast() or finals["none"][2] < finals["synchronous"][1])

# %% [markdown]
# ## The rules
#
# The same age, four weights. `topr` is an intervention: it leaves `none` as it is on everything that is reinforced, and takes
# weight only from what is pushed *down* and has become rarer meanwhile.
#
# **Your prediction.** *Which share of what lateness cost does that alone give back?*

# %%
prediction = None  # (topr - none) / (synchronous - none), of the final rewards

# %%
rules = {rule: {"rule": rule, **LATE} for rule in ("exact", "ppo_clip", "spire", "topr")}
MOMENT = (6, 6 + AGE) if fast() else (24, 24 + AGE)  # of these two versions the weights are kept, for later
arms |= rules
everybody = train(rules, SEEDS, list(arms), MOMENT)

# %%
ends = {name: race.judged(name) for name in arms}
back = (ends["topr"].value - ends["none"].value) / (ends["synchronous"].value - ends["none"].value)
reveal(prediction, back, "Most of the harm came from pushing down what the policy no longer says.", 0.1)
standing = [[name, race.best(name), ends[name], race.gain(name, "none")] for name in arms]
table(["arm", "best evaluation", "final reward [interval]", "more than `none`, seed by seed [interval]"], standing)
miss = 2 * 0.5**SEEDS
say(
    f"{SEEDS} seeds: an interval within their extremes misses the median of all runs with probability {miss:.4f} or more."
)

# %%
assert all(by_hand.same_log(found) for name in rules for found in race.runs[name])
hand = {name: by_hand.standing(race.runs[name], race.runs["none"], lab.SEEDS[name], "none") for name in arms}
value = {name: found[1][0] for name, found in hand.items()}
assert says([row[1:] for row in standing], list(hand.values())) and says(everybody.words, [x[1] for x in hand.values()])
assert abs(back - (value["topr"] - value["none"]) / (value["synchronous"] - value["none"])) < 1e-9
assert abs(miss - by_hand.all_on_one_side(SEEDS)) < 1e-12
assert fast() or min(hand["topr"][2][1], hand["ppo_clip"][2][1]) > 0

# %% [markdown]
# ## Where the push goes
#
# Left: effective share of the tokens by weights as applied (lines) and by raw ratios (dotted): `none` looks perfect as applied.
# Middle: share of $\sum |wA|$ on tokens **left behind**: at most half as likely as when they were drawn, and pushed down still.
# Right: on tokens **now likelier**, more than twice as likely as when they were drawn.

# %%
TITLES = ["weights", "left behind, pushed down", "now likelier"]
late = [name for name in arms if name != "synchronous"]
where = {name: (race.push(name, lab.left_behind), race.push(name, lab.now_likelier)) for name in late}
show(panels.push(race, where, TITLES))
mean = {name: [np.mean(race.curve(name, what)) for what in ("ess_raw", "ess_applied")] for name in late}
log = []
for name in late:
    shares = [f"{np.mean(share):.1%}" for share in where[name]]
    log.append([name, f"{race.acted(name, AGE):.0%}", *[f"{x:.3f}" for x in mean[name]], *shares])
table(["rule", "tokens acted on", "effective share, raw", "as applied", "push on left behind", "on now likelier"], log)

# %%
assert says([row[1:] for row in log], [by_hand.pushing(race.runs[name], AGE) for name in late])
assert fast() or np.mean(where["none"][0]) > 3 * max(np.mean(where[rule][0]) for rule in rules)

# %% [markdown]
# **Why `none` collapses.** A failure of eight updates ago is pushed down although the policy has left it long since, and the push
# does not fade as the token gets rarer: its score stays near one, its weight is one. Logits run away, and shared parameters with
# them. All other rules turn that push off. `topr` changes only what is pushed down: what it gives back was lost there.
#
# **Why `exact` and `spire` fall behind `ppo_clip` and `topr`.** Here we see only what goes with it: they let the few tokens that
# became likelier carry the largest part of the push. What that does to the noise can be computed.
#
# ## One moment, exactly
#
# Is the trouble *bias*? Freeze a run: the trainer's policy, that of eight updates ago, and the problem that the stale one solves
# most nearly every second time. All responses can be listed, so the mean of every estimator is a sum, as is the gradient it
# should have. Advantage: reward minus the stale policy's mean, which is what a large group subtracts.
#
# **Your prediction.** `exact` corrects each token, and not the tokens before it. *How large is its bias, in multiples of the
# gradient's length?*

# %%
prediction = None  # |mean update of `exact` - gradient| / |gradient|

# %%
frozen, (then, now) = race.runs["exact"][0], MOMENT
RULES = ("none", "exact", "sequence_product", "topr")
RULES = RULES if fast() else ("none", "exact", "prefix", "sequence_product", "spire", "ppo_clip", "topr")
solved = {x: by_hand.right_share(frozen.policy(then), task, torch.tensor([x])) for x in frozen.run.prompts.tolist()}
problem = min(solved, key=lambda x: abs(solved[x] - 0.5))
moment = lab.moment(frozen, now, then, group=problem, least=1e-7 if fast() else 0.0)
DRAWN, BATCH = 512 if fast() else 4096, frozen.run.config.batch
rows, measured = moment.rows(RULES, BATCH, DRAWN)
reveal(
    prediction, rows["exact"][0], "Three tokens, and a beginning that rarely changes: little is left to correct.", 0.01
)
show(panels.moment(rows, [f"{len(moment.probs):,} responses, {DRAWN:,} drawn", f"noise of {BATCH} responses"]))
HEAD = [
    "rule",
    "bias",
    f"noise of {BATCH}",
    f"noise of {DRAWN:,}",
    "measured, from its exact mean",
    "from the gradient",
]
table(HEAD, shown := [[rule, *[f"{x:.3f}" for x in row]] for rule, row in rows.items()])

# %%
TIGHT = 1e-3 if fast() else 1e-10
gradient = by_hand.on_policy(moment)
hand = {rule: by_hand.estimator(moment, rule, gradient, measured[rule], BATCH, DRAWN) for rule in RULES}
assert says([row[1:] for row in shown], list(hand.values())) and abs(rows["exact"][0] - hand["exact"][0]) < TIGHT
assert (gradient - moment.gradient).norm() < TIGHT * gradient.norm()
assert rows["sequence_product"][0] < TIGHT and rows["exact"][0] < rows["none"][0]
assert fast() or (all(row[1] > row[0] for row in rows.values()) and rows["exact"][1] > 1 > 5 * rows["topr"][1])
assert fast() or rows["ppo_clip"][1] > 0.9 * rows["exact"][1] > 3 * rows["exact"][3]  # as noisy; the draws missed it
assert all(
    found < 4 * scatter for _, _, scatter, found, _ in hand.values()
)  # the trainer's loss estimates what it should

# %% [markdown]
# The product is unbiased to rounding (theorem S2), the token ratio is not (S5), and here it hardly matters: for every rule the
# noise of a batch is larger than its bias, and for `exact` and the product it is larger than the gradient. It comes from
# responses that the stale policy hardly ever writes: the thousands drawn here missed them, and look calmer than they are.
# `ppo_clip` is as noisy, since it does not bound the ratios of *failures*. `topr` and `spire` (here with a cap of two) take some
# bias for a fraction of the noise. This is one problem at one moment; but no log of weights would have shown it.
#
# ## Replay of successes
#
# A store of *successes only* never pushes anything down. But what is the advantage of a replayed success? Compared with other
# successes it would be zero, and nothing would be learned (theorem S7); so it keeps the advantage that it had in its own group,
# whose failures are gone. Fresh groups sum to zero, replayed successes do not:
#
# $$ E[A \mid \text{success}] = \frac{E\sqrt{m(G-m)}}{Gp}, \qquad m \sim \text{Binomial}(G, p). $$
#
# **Your prediction.** $G = 8$, $p = 1/2$, half of the batch replayed. *What is the mean advantage of the batch?*

# %%
prediction = None  # mean advantage of a batch, half of it replayed successes


# %%
def kept(p, size):
    """Mean advantage of a stored success, from the library's advantages of all groups it may come from."""
    return sum(chance * a for chance, a in lab.groups_of_a_success(p, size))


reveal(prediction, kept(0.5, 8) / 2, "A constant push towards whatever is stored, whoever wrote it and when.", 0.02)
PS = [0.05 + 0.9 * i / (8 if fast() else 36) for i in range(9 if fast() else 37)]


def draw_kept(p, size, share):
    """Draw the mean advantage of stored successes."""
    here = kept(p, size)
    image = panels.replayed(PS, [kept(x, size) for x in PS], (p, here), share, f"kept advantage {here:.3f}")
    return image, f"mean advantage of the batch <b>{share * here:.3f}</b>; of its fresh part 0"


successes = Control(
    draw_kept,
    p=Choice("success rate p", [0.1, 0.3, 0.5, 0.7, 0.9], 0.5),
    size=Choice("group size G", [2, 4, 8, 16], 8),
    share=Choice("replayed share", [0.25, 0.5, 0.75], 0.5),
)
successes.show()

# %%
for at in settings(successes):
    here = by_hand.kept_advantage(at["p"], at["size"])
    assert says(told(successes, **at), here, at["share"] * here, 0)

# %% [markdown]
# And in training, without a weight, half of each batch from a store of the last four:

# %%
replays = {name: {"rule": "none", "system": name} for name in ("replay", "replay_success")}
again = train(replays, FEWER_SEEDS, ["synchronous", *replays])
means = [[name, *[f"{race.advantage(name, old):+.3f}" for old in (False, True)]] for name in replays]
lines = [[*row, race.judged(row[0]), race.gain(row[0], "replay")] for row in means]
HEAD = [
    "system",
    "mean advantage, fresh",
    "replayed",
    "final reward [interval]",
    "more than `replay`, by seed [interval]",
]
table(HEAD, lines)

# %%
hand = {name: by_hand.standing(race.runs[name], race.runs["replay"], lab.SEEDS[name], "replay") for name in replays}
parts = {name: by_hand.parted(race.runs[name]) for name in replays}
assert says([row[1:] for row in lines], [[parts[name], hand[name][1:]] for name in replays])
assert says(again.words, finals["synchronous"], [found[1] for found in hand.values()])
assert abs(parts["replay"][0]) < 1e-6 > abs(parts["replay_success"][0]) and parts["replay_success"][1] > 0.2

# %% [markdown]
# Uniform replay brings stale failures back, and with them the trouble of `none`; a store of successes does not. It ends below the
# synchronous runs all the same, and these few runs cannot say whether that is the age of what is replayed or the constant push.
#
# ## Larger studies
#
# What was committed of the same laboratory, over more tasks, seeds and rules:

# %%
files = committed_studies.studies()
summaries = [committed_studies.summary(path) for path in files]
if summaries:
    table(["study", "title", "runs", "collapsed", "final reward, all runs"], summaries)
else:
    say("No study is committed here yet: `python -m testbed sweep NAME` runs one.")

# %%
for path, row in zip(files, summaries, strict=True):
    assert says(row[2:], committed_studies.by_hand(path))

# %% [markdown]
# ## Decided, not believed
#
# ```
# python -m theory show S5
# python -m theory break S5:terminal_reward_under_the_bound
# python -m theory break S7:baseline_per_prompt
# python -m theory break S13:mean_not_divided_out
# ```

# %%
mutants = [("S7", "baseline_per_prompt"), ("S13", "mean_not_divided_out"), ("S5", "terminal_reward_under_the_bound")]
broken = {f"{theorem}:{name}": break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict"], [[name, "refuted" if m.killed else "survived"] for name, m in broken.items()])
assert all(m.killed for m in broken.values())

# %% [markdown]
# ## Take away
#
# * Age buys idle time back. Look at the age of *tokens when they are used*, and at where versions change inside a response.
# * Log effective shares of *raw* ratios and the push on tokens left behind: weights as applied say nothing about `none`.
# * What kills late training first is pushing down what the policy has left. Turn that push off, by a ratio, a clip or a taper.
# * Unbiased is not enough, and biased is not fatal: look at bias, noise, and what is fed back.
# * A store of successes needs advantages from their own groups, and then its batches lean upward.
#
# **Try.** Another age, another rate, `areal` instead of `steps_off`. Which of these sentences survive?
