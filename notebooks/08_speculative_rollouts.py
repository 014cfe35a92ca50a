# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Speculative rollouts
#
# **Question.** Most of the time of reinforcement learning on language goes into writing responses, one token per pass of the
# policy. A *speculative* engine guesses several tokens, lets one pass of the policy check them all, and keeps what fits. It is
# said to be faster *and* to leave the text unchanged. *Unchanged in which sense? For one response, or for a group? And what is
# the speed made of?*
#
# | claim | how it is decided here | theorem |
# |---|---|---|
# | the same tokens, whatever is guessed | keyed noise: two engines, compared token by token | V2 |
# | the same law | every choice of the engine walked, with its probability | V3 |
# | no verifier accepts more | the sum of the path probabilities of a tree | V5 |
# | some engines are right about tokens and wrong about groups | joint laws, exact expected updates | V11, V13 |
#
# Two things make an engine: a **drafter** that proposes a tree of candidates, and a **verifier**. The verifier here is the
# plainest one. Start at the root. *Draw a token from the policy; if a candidate holds it, go there and repeat; if none does,
# stop. Either way the token is written.*

# %%
from math import prod

import speculative_by_hand as by_hand
import speculative_lab as lab
import speculative_panels
import torch
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, reveal, say, show, table

import testbed
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout import rollout, speculative
from theory import break_mutant, round_cuts
from theory.pair_updates import expected_update
from theory.speculative_worlds import Speculation

TIGHT = 1e-12

# %% [markdown]
# ## A policy and its heads
#
# A small transformer over six tokens, which nobody trained. *Heads* guess the tokens after the next one from the model's last
# state. As they come they repeat the law of the next token; they are taught on what the policy wrote, and it is not changed.

# %%
WORDS, LONG, ROWS = 6, 24, (4 if fast() else 16)
FAN_OUT, MOST = (3, 2, 2), 12  # likeliest tokens considered at each depth; most candidates in a tree
config = TransformerConfig(vocab_size=WORDS, width=16, layers=2, heads=2, hidden=32, context=LONG + 1 + len(FAN_OUT))
policy = TransformerPolicy(Transformer.random(config, seed=0, sharpness=2.5))
task, noise = lab.Words(WORDS, LONG), testbed.KeyedChooser(1)
plain = rollout(task, policy, ROWS, noise)
read = rollout(task, policy, 50 if fast() else 200, testbed.KeyedChooser(7))
HEADS = {name: speculative.FutureHeads.of(policy, len(FAN_OUT)) for name in ("heads as they come", "taught heads")}
recipe = speculative.HeadRecipe(steps=40 if fast() else 150, rate=1e-2)
speculative.teach_heads(HEADS["taught heads"], policy, read, recipe)
law, responses = lab.law_of(policy), [tuple(row) for row in plain.tokens.tolist()]
guessed = {name: lab.guesses(policy, heads, plain.tokens) for name, heads in HEADS.items()}

# %% [markdown]
# ## One round
#
# The engine keeps a record of every round: the tree, the policy's laws at all nodes, from *one* pass, and the walk. Here is one
# of them. A node shows its token and the policy's probability of getting there; heavy: the walk; dotted: the last draw.

# %%
DRAFTERS = {name: speculative.HeadDrafter(heads, FAN_OUT) for name, heads in HEADS.items()}
_, rounds = lab.speculate(task, policy, ROWS, noise, DRAFTERS["taught heads"], 6)
looked = lab.least_certain(rounds, accepted=2)  # of response 0
place, run = int(looked.frontier.position[0]), tuple(looked.run.tokens[0].tolist())
chances = lab.recorded_chances(looked)
past, ahead = responses[0][:place], responses[0][place : place + len(FAN_OUT) + 1]
show(one_round := speculative_panels.tree(past[-1], chances, run[:2], run[2], "One round of response 0"))

# %%
by_scores = lab.reach(policy, past, list(chances))
assert lab.walk(list(chances), ahead) == (run[:2], run[2])  # the walk follows what plain sampling writes
assert says(one_round.words, 0, past[-1], [(h[-1], p) for h, p in by_scores.items()], ahead[2])
total = sum(chances.values())
assert abs(lab.below_root(looked) - sum(law(past)[h[0]] for h in chances if len(h) == 1)) < TIGHT
assert abs(total - by_hand.accepted_by_listing(law, past, chances, len(FAN_OUT))) < TIGHT

# %% [markdown]
# ## Your prediction
#
# **With which probability is at least one draft accepted in a round with this tree?**

# %%
prediction = None  # the probability that the first draw is one of the root's children

# %%
reveal(
    prediction,
    lab.below_root(looked),
    "The draw is a child with the policy's own mass on the children. One level down the same holds, so the expected number of "
    f"accepted drafts is the sum of all numbers in the tree: {total:.3f}. No verifier that leaves the law alone accepts more "
    "from this tree (theorem V5): it accepts a beginning of what the policy writes, and this walk follows that to the edge.",
)

# %% [markdown]
# ## Turn the knobs
#
# A tree is the largest path weights *of the drafter*; what counts are probabilities *of the policy*.


# %%
def draw_tree(count, heads):
    """Draw a tree of so many candidates behind the same beginning."""
    found = lab.reach(policy, past, lab.paths_of(DRAFTERS[heads].draft(looked.frontier, count)))
    (through, drawn), expected = lab.walk(list(found), ahead), sum(found.values())
    title = f"{count} candidates: {expected:.3f} accepted on average, {len(through)} in this response"
    sentence = f"{heads}, {count} candidates: <b>{expected:.3f}</b> accepted drafts on average"
    return speculative_panels.tree(past[-1], found, through, drawn, title), sentence


names = Choice("drafter", list(HEADS), "taught heads")
trees = Control(draw_tree, count=Choice("candidates", range(1, MOST + 1), 10), heads=names)
trees.show()

# %%
for at in settings(trees):
    paths = lab.in_order(by_hand.ranked_paths(guessed[at["heads"]][0][place - 1], FAN_OUT, at["count"]))
    through, drawn = lab.walk(paths, ahead)
    size = [at["count"], by_hand.accepted_by_listing(law, past, paths, len(FAN_OUT))]
    reached = [(h[-1], prod(law(past + h[:k])[h[k]] for k in range(len(h)))) for h in paths]
    assert says(told(trees, **at), size, len(through), past[-1], reached, drawn, size)

# %% [markdown]
# ## The same tokens
#
# Give each (response, position) its own noise: a token is a function of what stands before it and of that noise. Whatever is
# proposed, the engine must then write what it writes without drafts. One differing token is a bug (theorem V2).

# %%
NODES = 5
DRAFTERS = {"none": None, **DRAFTERS, "lookup": speculative.PromptLookup()}
speeds = []
for name, drafter in DRAFTERS.items():
    batch, seen = lab.speculate(task, policy, ROWS, noise, drafter, NODES)
    passes = sum(len(r.frontier.rows) for r in seen)  # behind the one over the prompt, of each response
    speeds.append([name, int((batch.tokens != plain.tokens).sum()), passes, f"{ROWS * (LONG - 1) / passes:.3f}"])
table(["drafter", "tokens that differ", "passes", "tokens per pass"], speeds)

# %%
recounted = [ROWS * (LONG - 1)]
for laws in (*guessed.values(), [None] * ROWS):
    proposed = [by_hand.proposals(y, own, FAN_OUT, NODES, WORDS) for y, own in zip(responses, laws, strict=True)]
    recounted.append(sum(map(by_hand.passes, responses, proposed)))
assert says(speeds, [(0, count, ROWS * (LONG - 1) / count) for count in recounted])

# %% [markdown]
# The text is exact by construction; the tokens per pass are luck, of the drafter and of the response.
#
# ## The same law
#
# With ordinary random numbers the claim is one about *laws*, and it is decided as strictly: a tiny policy, and every choice that
# the engine can make, walked with its probability (theorem V3). But which law? That of one response, or that of the group that
# a group-relative update needs? Beside the engine stand two with defects that were read in public code: in one, the **first
# token is drawn once per prompt** and copied to the group; in the other, the **batch stops** with the round in which its
# longest response reaches the cap.

# %%
STEPS = 3
small = Speculation(name="classroom", horizon=STEPS, rows=2, sharpness=0.5, layers=1)
ENGINES = {"ours": None, "first token shared": "shared_first_token", "batch stopped": "whole_batch_stop"}
draft = {"drafter": lambda: small.heads(1), "nodes": 1}
pairs = {name: small.law(n=2, specimen=specimen, **draft) for name, specimen in ENGINES.items()}
target = dict(zip(small.responses(), small.target.probs.tolist(), strict=True))
apart = {(y, z): p * q for y, p in target.items() for z, q in target.items()}
off = {name: (by_hand.distance(by_hand.of_one(p), target), by_hand.distance(p, apart)) for name, p in pairs.items()}
root = small.laws[()].exp().tolist()
say(f"The first token is 0 with probability {root[0]:.3f} and 1 with probability {root[1]:.3f}.")

# %% [markdown]
# ## Your prediction
#
# The engine with the shared first token: each response alone has the right law. **At which total variation from two independent
# responses is the law of a pair?**

# %%
prediction = None  # total variation of the pair

# %%
reveal(
    prediction,
    off["first token shared"][1],
    "Two independent first tokens agree with probability $\\sum_v p(v)^2$; here they always do. What is missing is the rest, "
    "$1 - \\sum_v p(v)^2$. A test of single responses, however large, sees nothing.",
)
distances = [[name, *[f"{x:.4f}" for x in both]] for name, both in off.items()]
table(["engine", "one response: distance from the policy", "a pair: distance from independence"], distances)

# %%
small_law = lab.law_of(small.policy)
listing = (by_hand.independent, by_hand.one_first_token, by_hand.stopped_together)
listed = {name: found(small_law, STEPS) for name, found in zip(ENGINES, listing, strict=True)}
single, double = by_hand.responses_of(small_law, STEPS), listed["ours"]
assert all(by_hand.distance(pairs[name], listed[name]) < TIGHT for name in ENGINES) and max(off["ours"]) < TIGHT
assert says(
    distances, [(by_hand.distance(by_hand.of_one(p), single), by_hand.distance(p, double)) for p in listed.values()]
)
assert abs(off["first token shared"][1] - (1 - sum(p * p for p in root))) < TIGHT
assert abs(root[0] - small_law(())[0]) < TIGHT and off["first token shared"][0] < TIGHT  # and yet each alone is right

# %% [markdown]
# ## What it does to the gradient
#
# Pairs, group mean, no division. **Your prediction:** all responses of a group have the same first token. What is left of the
# first token's gradient, as a share of what it should be?

# %%
prediction = None  # 1 = all of it

# %%
updates = {name: tuple(float(part.norm()) for part in expected_update(small, found)) for name, found in pairs.items()}
reveal(
    prediction,
    round(updates["first token shared"][0] / updates["ours"][0], 12),
    "Nothing: everybody has the score of the same token, and the advantages of a group sum to zero (theorem V11). "
    "The later tokens do not notice. Whatever a policy should learn to *begin* with, it cannot learn from such groups.",
)
show(bars := speculative_panels.two_parts(updates))

# %%
assert says(bars.words, [by_hand.update_lengths(small_law, p, STEPS) for p in listed.values()])
gap = sum(expected_update(small, pairs["ours"])) - testbed.exact_gradient(small.env, small.world.target) / 2
assert gap.abs().max() < TIGHT  # (1 - 1/G) grad J
assert updates["first token shared"][0] < TIGHT and updates["first token shared"][1] > 0.01

# %% [markdown]
# ## Rules that look right
#
# One token, four words. **SPEC-RL** reuses the response of an earlier policy $q$: a token is kept with probability
# $\min(1, p/q)$, and after the first rejection the current policy $p$ goes on. Exact rejection sampling draws the rejected token
# from what is *left*, $(p-q)_+$; drawing from $p$ costs (theorem V12)
#
# $$\tfrac12 \sum_v \big|\min(p, q)(v) - \alpha\, p(v)\big|, \qquad \alpha = \sum_v \min(p, q)(v) .$$
#
# The second slip: a draw that is no candidate is thrown away, and drawn again. Candidates get a second chance: with mass $m$ on
# the candidates the law is off by $m(1-m)$.

# %%
SHIFTS = [0.0, 0.5, 1.0] if fast() else [i / 10 for i in range(11)]
SETS = [(3,), (2,), (1,), (0,), (0, 1), (0, 2, 3), (0, 1, 2)]  # candidates; the likeliest words come first
reuse, redraws = [lab.reused(x) for x in SHIFTS], {round(sum(lab.TOY[x] for x in s), 9): lab.redrawn(s) for s in SETS}


def draw_rules(shift, likeliest):
    """Draw both costs."""
    cost, mass = lab.reused(shift), round(sum(lab.TOY[:likeliest]), 9)
    titles = f"a reused token: {cost:.4f}", f"m = {mass:.1f}, a redraw: {redraws[mass]:.4f}"
    words = f"reused: <b>{cost:.4f}</b>, with the residual {lab.repaired(shift):.4f}"
    image = speculative_panels.wrong_rules(SHIFTS, reuse, (shift, cost), redraws, mass, titles)
    return image, f"{words}; drawn twice: <b>{redraws[mass]:.4f}</b>"


far = Choice("how far the earlier policy is", SHIFTS, 1.0)
rules = Control(draw_rules, shift=far, likeliest=Choice("likeliest words drafted", [1, 2, 3], 1))
rules.show()

# %%
for at in settings(rules):
    cost, m = by_hand.reuse_distance(lab.TOY, lab.earlier(at["shift"])), sum(lab.TOY[: at["likeliest"]])
    assert says(told(rules, **at), cost, m, m * (1 - m), cost, 0, m * (1 - m))
assert all(abs(d - m * (1 - m)) < TIGHT for m, d in redraws.items()) and abs(reuse[-1] - 0.14) < TIGHT

# %% [markdown]
# ## Exact for which law?
#
# For the law that is *sampled*. Rollouts drawn at another temperature, or with top-p, stay what they are: an off-policy batch,
# whose ratios are recorded and can be used. Here are responses of the tiny policy, drawn at a lower temperature:

# %%
cold = lab.written_at(small, COOL := 0.6)
errors = {"no weight": cold.error("none", small), "product of ratios": cold.error("sequence_product", small)}
cold_rows = [[name, f"{value:.1%}"] for name, value in errors.items()]
table(["weight of a response", "error of the mean update"], cold_rows)

# %%
assert says(cold_rows, by_hand.cooled_errors(small_law, STEPS, COOL))
assert errors["product of ratios"] < TIGHT < 0.05 < errors["no weight"]

# %% [markdown]
# ## Do not take what comes first
#
# All responses of the tiny policy have one length, and still some are done in fewer passes: those that the drafter guessed.
# Return the first of two, or stop the engine after some passes and drop the rest, and the batch is biased; the recorded ratios
# are all one. Pause instead, and let the policy go on later: where a response stands after so many passes is decided by its
# tokens up to there, so nothing is selected (theorem V13).

# %%
PASSES, done = 2, round_cuts.finished(small, nodes=1)
cuts = {"the first of two": round_cuts.law_of_first(small, done, 2, 1)}
cuts["those done in time"] = round_cuts.law_of_finished(small, done, PASSES)
cuts["paused, and resumed by the policy"] = round_cuts.law_of_resumed(small, done, PASSES)
cut_rows = [[name, f"{float((found - small.target.probs).abs().sum() / 2):.4f}"] for name, found in cuts.items()]
table(["what is kept", "total variation from the policy"], cut_rows)

# %%
assert says(cut_rows, by_hand.kept(small_law, STEPS, PASSES), 0) and all(abs(d.ratio - 1) < TIGHT for d in done)

# %% [markdown]
# ## What the speed is made of
#
# A round writes $1 + F(N)$ tokens, $F(N)$ the expected accepted drafts of $N$ candidates, and costs one pass over $N+1$ tokens
# per response. Here is $F$ for the taught heads, a mean over all places where they drafted.

# %%
_, watched = lab.speculate(task, policy, ROWS, noise, DRAFTERS["taught heads"], MOST)
gains = lab.mean_gains(watched)
gain_rows = [[n, f"{1 + gains[n - 1]:.3f}"] for n in (1, 2, 4, 8, 12)]
table(["candidates", "tokens per pass"], gain_rows)

# %%
each = []
for row, t in lab.places(watched):
    ranked = by_hand.ranked_paths(guessed["taught heads"][row][t - 1], FAN_OUT, MOST)
    each.append(by_hand.gains(law, responses[row][:t], ranked))
mean = [sum(column) / len(each) for column in zip(*each, strict=True)]
assert says(gain_rows, [(n, 1 + mean[n - 1]) for n in (1, 2, 4, 8, 12)])

# %% [markdown]
# **And why it can vanish.** Up to a peak $C$ of tokens per pass, over all responses, hardware waits for its memory and extra
# tokens are free; beyond, each costs. So let the pass take $T(B, n) = \max(1, nB/C)$. With few unfinished responses a large tree
# is free; with many, the same tree makes the engine *slower*. Three budgets: a fixed number of candidates, the peak shared
# evenly, and the best number for these times, zero included. Sharing is nearly best: a candidate beyond the peak has to be
# worth more than the average token of the pass so far.

# %%
ACTIVE = [1, 6, 48, 192] if fast() else [1, 3, 6, 12, 24, 48, 96, 192]


def draw_budgets(peak, active):
    """Draw speed and candidates against the number of unfinished responses."""
    (faster, counts), at = lab.budget_lines(ACTIVE, gains, peak), ACTIVE.index(active)
    title = f"B = {active}, fixed: {faster['fixed'][at]:.2f} times as fast"
    words = [f"{name}: {counts[name][at]} candidates, <b>{faster[name][at]:.2f}</b> times as fast" for name in counts]
    return speculative_panels.concurrency(ACTIVE, faster, counts, active, title), "; ".join(words)


peaks = Choice("peak C (tokens per pass)", [32, 128, 512] if fast() else [16, 32, 64, 128, 256, 512], 128)
budgets = Control(draw_budgets, peak=peaks, active=Choice("unfinished responses B", ACTIVE, 48))
budgets.show()

# %%
for at in settings(budgets):
    counts = by_hand.roofline_counts(at["active"], mean, at["peak"])
    speed = [(n, by_hand.roofline_speed(at["active"], n, mean, at["peak"])) for n in counts.values()]
    assert says(told(budgets, **at), at["active"], speed[0][1], speed)
assert by_hand.roofline_speed(192, MOST, mean, 128) < 1 < by_hand.roofline_speed(1, MOST, mean, 128)

# %% [markdown]
# ## Measured, and therefore not asserted
#
# The next figure is a *measurement*: its numbers are those of the machine, and of the minute, in which this notebook was
# executed. Pass times are no straight line but a staircase, since kernels change with the shapes of operands: measure, look up.

# %%
timed = lab.timed_policy()
with torch.no_grad():
    seconds = speculative.pass_seconds(timed, [1, 8, 64], 8, repeats=1 if fast() else 9)
show(speculative_panels.staircase(seconds, [1.0, *[1 + g for g in gains[:8]]]))
said = [f"{1e3 * r[0]:.1f} ms at B = {b}, with eight drafts {r[-1] / r[0]:.1f} times that" for b, r in seconds.items()]
size = f"{timed.model.parameter_count:,} parameters, {torch.get_num_threads()} thread, one token per response"
say(f"{size}: {'; '.join(said)}. A busy machine changes these numbers; it cannot change the text that is written.")

# %% [markdown]
# ## Decided, not believed
#
# ```
# python -m theory show V2
# python -m theory break V11:first_token_shared
# python -m theory break V12:policy_unchanged
# python -m theory break V13:last_token_drawn_again
# ```

# %%
mutants = [("V13", "last_token_drawn_again"), ("V12", "policy_unchanged"), ("V11", "first_token_shared")]
broken = {name: break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict"], [[name, "refuted" if m.killed else "survived"] for name, m in broken.items()])
assert all(m.killed for m in broken.values())

# %% [markdown]
# ## Take away
#
# * Draw every position once, from the policy, and write what was drawn: the text is exact for every drafter.
# * Exact per response is not exact per group. Share one draw, or one end, and the expected update changes.
# * The verifier keeps the law that is *sampled*. Temperature and top-p are still to be corrected for.
# * What is finished first was guessed best. Wait, or pause and resume.
# * Speed is tokens per pass over the price of a larger pass, which grows with the responses under way.
#
# **Try.** Teach the heads on five responses only. Which numbers on this page change, and which cannot?
