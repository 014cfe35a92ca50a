# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Diagnose your own run
#
# **Question.** Your run learns badly, or looks fine and should not. You have a dump: what the sampler and the trainer said about
# every token of a batch. *What does it give away, what can it not, and is the advice any good?*
#
# We train a small run with a mistake in it, write the dump in the layouts of two trainers, let `testbed diagnose` read it, go
# through the report, repair the mistake, and see it gone. Then we follow the advice, in training, and look whether it helped.
#
# | word | meaning |
# |---|---|
# | **dump** | one batch, before its first optimizer step: log-probs of both sides, mask, rewards, groups |
# | $p$, $q$ | trainer's and sampler's recorded probability of the drawn token; **ratio** $k = p/q$ |
# | **displacement** $\varepsilon$ | $\log\frac{p}{1-p} - \log\frac{q}{1-q}$ |
# | **fault**, **note** | a recorded number is not what its name says; a property of honest data that limits what can be done |
#
# The run: parity of ten bits with a working, a stream of responses, each finished by the weights that began it.

# %%
import json

import dump_by_hand as by_hand
import dump_panels as panels
import faulty_dumps as lab
import numpy as np
from checked_panels import says, settings, told
from classroom import Choice, Control, fast, reveal, say, show, table
from stale_by_hand import finals, interval, same_log
from stale_runs import SEEDS as STREAMS
from stale_runs import Race

from theory import break_mutant

SEEDS = 2 if fast() else 5

# %% [markdown]
# ## What to write down
#
# Ten lines for any trainer of the GRPO kind. Call it when a batch has been scored and before the first optimizer step; the names
# are those of verl, so that the file is recognized. Everything below comes out of this function.


# %%
def log_batch(path, rollout, trainer, mask, reward, group, tokens, version):
    """Write one batch: arrays [B, T] of tokens; reward, group and version [B]."""
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdims=True))
    columns = {"rollout_log_probs": rollout}  # what the sampler reported, under the law it drew from
    columns |= {"old_log_probs": trainer}  # computed by the trainer, through the same temperature and filters
    columns |= {"response_mask": mask, "responses": tokens}  # the model's own tokens only
    columns |= {"token_level_scores": reward[:, None] * last}
    columns |= {"uid": group.astype(str)}  # one per group that was drawn, not per prompt
    columns |= {"min_global_steps": version, "max_global_steps": version}  # of the weights that drew
    np.savez_compressed(path, **columns)


# %% [markdown]
# ## A mistake
#
# The sampler draws at temperature `0.8`, and reports log-probs at that temperature. The trainer scores at one. Rewards look fine,
# even better: colder answers are right more often.

# %%
dumps = lab.Shelf(log_batch)
healthy, faulty = dumps.path("nothing", "verl"), dumps.path("temperature", "verl")
rewards = [[name, f"{dumps.record(name, 'verl')['batch']['mean_reward']:.3f}"] for name in ("nothing", "temperature")]
table(["planted", "mean reward of the last batch"], rewards)

# %%
assert says([row[1:] for row in rewards], [by_hand.Dump.read(path).reward.mean() for path in (healthy, faulty)])

# %% [markdown]
# **Your prediction.** At temperature $T$ log-odds are about those at one divided by $T$. So the displacement is a *line* in the
# mean log-odds of the two, whereas honest engine noise knows no direction. *What is its slope at* $T = 0.8$?

# %%
prediction = None  # displacement over mean log-odds

# %%
T = lab.COOL
slope = 2 * (T - 1) / (T + 1)
reveal(prediction, slope, "Measured below: steeper, because log-odds of more than two words do not just scale.", 0.01)

# %%
assert abs(slope - (1 - 1 / T) / ((1 + 1 / T) / 2)) < 1e-12

# %% [markdown]
# ## Ask
#
# From a shell, in the folder with the file, or from Python; the numbers are the same.

# %%
printed = lab.command_line(dumps.folder, "diagnose", faulty.name, "--json", "record.json")
record, seen = dumps.record("temperature", "verl"), lab.faults_of(printed)
say(f"```\n$ testbed diagnose {faulty.name} --json record.json\n{seen}\n...\n```")

# %%
dump = by_hand.Dump.read(faulty)
warmth, explained = dump.temperature()
assert lab.fired(record, "fault") == ["temperature"]
assert says(seen, [1, 9, 1], warmth, explained, warmth, 1 / warmth, by_hand.power_of("temperature"))

# %% [markdown]
# It names the kind of mistake, the side, and what else could look like it; the temperature itself only roughly. Behind each named
# fault stand its power and its false alarms, measured on simulated dumps: *yours may be unlike those*, and we shall meet one.
#
# ## The report, section by section
#
# Each section begins with the sentence to take away.

# %%
report = lab.sections(record)
READ = ["BATCH", "TOKEN GAPS", "E[w] = 1?", "PRODUCTS THROUGH EACH SEGMENT", "WHICH READING OF SPIRE APPLIES"]
say("\n".join(f"* **{title}** {report[title].says}" for title in READ))
table(["DISPLACEMENT BY CONFIDENCE: trainer's p", "tokens", "median", "MAD"], bins := lab.confidence(record))
RULES = ("none", "exact", "tis", "sequence_product")
table(["RULES", "acted on", "mean weight", "second moment"], weights := lab.effects(record, RULES))

# %%
square = float((dump.products() ** 2).mean())
expected = [
    dump.batch(),
    [0, dump.divergence()],
    1,
    [dump.effective(), len(dump.mask), square, 2, dump.effective(2.0)],
    [],
]
assert all(says(report[title].says, numbers) for title, numbers in zip(READ, expected, strict=True))
assert says([row[1:] for row in bins], dump.displaced())
assert says([row[1:] for row in weights], [dump.rule(name) for name in RULES])
assert lab.same(json.loads((dumps.folder / "record.json").read_text())["result"], record)  # the shell's

# %% [markdown]
# * **E[w] = 1?** The ratios of this dump have mean one, and they must: the sampler *did* draw from the law that it reported. This
#   test catches log-probs of another law than the drawn one, and no mismatch between two honest columns.
# * **Displacement.** Negative medians, larger where the trainer is surer: the line, bin by bin.
# * **Products.** What correcting whole responses would cost. A cap makes the effective number look better: less noise, more bias.
#
# ## Repair, and look again
#
# Let the trainer score *through the sampler's temperature*, as it should have. Nothing has to be drawn anew.

# %%
REPAIRED = {fault: lab.diagnose(lab.repaired(fault)) for fault in ("temperature", "top-p")}
outcome = [[name, ", ".join(lab.fired(dumps.record(name, "verl"), "fault")), ", ".join(lab.fired(found, "fault")) or "none"]
           for name, found in REPAIRED.items()]  # fmt: skip
table(["planted", "faults before", "faults after"], outcome)

# %%
assert [row[2] for row in outcome] == ["none", "none"] and all(row[1] for row in outcome)

# %% [markdown]
# ## Other mistakes, another layout
#
# Left: displacement against log-odds. Right: how far each response has drifted, by its version tag. `trl` holds no versions.
# Which mistakes does it miss?

# %%
LAYOUTS, MISTAKES = ("verl", "trl"), ["nothing", "temperature", "tags reversed"] if fast() else list(lab.PLANTED)


def draw_dump(planted, layout):
    """Draw a dump, and say what the checks call it."""
    path, found = dumps.path(planted, layout), dumps.record(planted, layout)
    line = lab.line_of(path)
    words = "too few finite log-odds for a line" if line is None else f"slope {line[0]:+.3f}, explains {line[1]:.0%}"
    titles = f"{planted}: {words}", "drift by tag"
    held = by_hand.Dump.read(path)
    image = panels.dump(held.odds(), line and line[0], None if held.version is None else held.ages(), titles)
    named = [", ".join(lab.fired(found, kind)) or "none" for kind in ("fault", "note")]
    return image, f"mean ratio {lab.mean_ratio(path):.4f}; faults: <b>{named[0]}</b>; notes: {named[1]}"


gallery = Control(
    draw_dump,
    planted=Choice("planted", MISTAKES, "temperature"),
    layout=Choice("layout", LAYOUTS, "verl"),
)
gallery.show()

# %%
for at in settings(gallery):
    held = by_hand.Dump.read(dumps.path(at["planted"], at["layout"]))
    assert says(told(gallery, **at), held.line(), held.mean_ratio())
for name in MISTAKES:
    fired = {
        layout: {kind: lab.fired(dumps.record(name, layout), kind) for kind in ("fault", "note")} for layout in LAYOUTS
    }
    assert name not in lab.NAMED or any(lab.NAMED[name] in names for names in fired["verl"].values()), (name, fired)
    assert name != "nothing" or not any(fired[layout]["fault"] for layout in LAYOUTS)
assert "version_tags" not in lab.fired(dumps.record("tags reversed", "trl"), "fault")

# %% [markdown]
# * What is not logged cannot be checked: without versions, reversed tags and log-probs that were computed again for old versions
#   have no trace, or only the crudest.
# * The check of tags compares the responses of a group where groups are recorded; if a whole group has one version it has nothing
#   to compare. The dump with reversed tags therefore leaves the groups out.
# * **Not in the menu, because nothing shows:** a sampler that *draws* at one temperature and *reports* at another agrees with the
#   trainer token by token. Only a second look at the sampler's own code finds it.
#
# ## A false alarm
#
# Now the stale run of the notebook before: additions, every token eight updates old, rule `exact`, with batches that are large
# enough for the checks. Nothing is wrong with its dumps. What do the checks say, update by update?

# %%
LATE = {"rule": "exact", "system": "steps_off", "system_params": {"ahead": 8}}
wide = lab.watched({**LATE, "prompts": 32}, seed=0, keep=range(100))
MOMENTS = range(9, len(wide.seen), 5)
accused = {u: lab.fired(lab.diagnose(lab.batch_at(wide, u)), "fault") for u in MOMENTS}
say(accusation := lab.accused_words(accused))
best, last = max(reward for _, reward in wide.run.evaluations), wide.run.evaluations[-1][1]
say(course := f"The run had {best:.3f} of its problems right at its best, and {last:.3f} at its end.")

# %%
assert same_log(wide)
lines = [u for u in MOMENTS if by_hand.Dump.of(lab.batch_at(wide, u)).accused_of_a_temperature()]
assert says(accusation, len(lines), len(MOMENTS), lines[:1]) and lines == [u for u, names in accused.items() if names]
rewards = [reward for _, reward in wide.run.evaluations]
assert says(course, sorted(rewards)[-1], rewards[-1]) and (fast() or lines)

# %% [markdown]
# The checks begin to accuse when the run goes wrong. Updates that sharpen or flatten the policy make the same line as a
# temperature, and so large a drift is far outside of what the printed rates are about. One more column, the *drawing* weights
# scored by the trainer (`logp_proximal`), takes the updates out of that comparison:

# %%
cleared = {u: lab.fired(lab.diagnose(lab.with_proximal(wide, u)), "fault") for u in MOMENTS}
say(remaining := lab.accused_words(cleared))

# %%
shifted = [u for u in MOMENTS if by_hand.looks_shifted(lab.with_proximal(wide, u))]
assert says(remaining, len(shifted), len(MOMENTS), shifted[:1]) and shifted == [
    u for u, names in cleared.items() if names
]
assert {name for names in cleared.values() for name in names} <= {"shift_by_one"}

# %% [markdown]
# What is left compares the target of now with neighboring tokens of then: once the drift of a token is larger than its distance
# from its neighbor, that comparison means nothing. A check that fires is a question, not a verdict.
#
# ## The advice
#
# Two things to set, from one batch's weights and advantages: a cap, and a share of replay. Here for a batch of the run with
# sixty-four responses.
#
# **Your prediction.** *Where would you cap its token ratios?*

# %%
prediction = None  # cap of the token ratios

# %%
race = Race()
race.run({"exact": LATE}, SEEDS, lambda: None)
batch = lab.batch_at(race.runs["exact"][0], 12 if fast() else 60)
advice = lab.diagnose(batch)["advice"]
caps = [[cap["weight"], *lab.cap_words(cap)] for cap in advice["caps"]]
cap = round(advice["caps"][-1]["cap"], 2)
reveal(prediction, cap, "The cap of least error for a mean over these responses (theorem O1).", 0.25)
table(["weight", "cap [interval]", "weights above it"], caps)
say(lab.share_words(advice["replay"]))

# %%
held = by_hand.Dump.of(batch)
assert says([row[1:] for row in caps], held.caps()) and says(
    lab.share_words(advice["replay"]), held.share_with_interval(1, 0.25)
)
low, high = (advice["replay"]["interval"][end] for end in ("low", "high"))
assert all(same_log(found) for found in race.runs["exact"]) and (fast() or (low, high) == (0, 1))

# %% [markdown]
# The share is a proxy, and its interval, from nothing to all, says that it does not know. So we train three ways, with the same
# seeds: without advice; with the cap; with the cap and, whatever the share says, half of each batch replayed, at equal cost (a
# replayed response counts a quarter of a fresh one).
#
# **Your prediction.** *How much more final reward does the cap bring?*

# %%
prediction = None  # final reward with the advised cap, minus that without

# %%
CAPPED = {**LATE, "rule": "tis", "rule_params": {"cap": cap}}
STORE = {"system_params": {"ahead": 8, "replay": "uniform", "replay_share": 0.5}, "prompts": 13}
WAYS = {"capped": CAPPED, "capped, replay": {**CAPPED, **STORE}}
race.run(WAYS, SEEDS, lambda: None)
gains = {name: race.gain(name, "exact") for name in WAYS}
reveal(prediction, gains["capped"].value, "Read the interval, not the number.", 0.05)
ends = {name: race.finals(name) for name in race.runs}
intervals = {name: (found.value, found.interval.low, found.interval.high) for name, found in gains.items()}
show(picture := panels.compared(ends, intervals, [f"{SEEDS} seeds", f"capped: {gains['capped']}"]))
table(["way", "more final reward, by seed [interval]"], rows := [[name, str(found)] for name, found in gains.items()])

# %%
plain, hand = finals(race.runs["exact"]), {}
for name in WAYS:
    apart = [mine - other for mine, other in zip(finals(race.runs[name]), plain, strict=True)]
    hand[name] = interval(apart, STREAMS[name]["exact"])
assert says([row[1:] for row in rows], list(hand.values())) and says(picture.words, SEEDS, hand["capped"])
assert fast() or all(low < 0 < high for _, low, high in hand.values())
assert abs(13 * 8 * (0.5 + 0.5 * 0.25) / 64 - 1) < 0.02  # equal cost

# %% [markdown]
# **So what was the advice good for?** It minimizes the error of *one mean*, under the weights of *one batch*. The notebook before
# froze a moment and saw how much a cap takes from the noise. That a run ends better is another claim: here the runs do not show
# it, and where they would is an experiment, of the kind that `testbed sweep` runs.
#
# ## Decided, not believed
#
# ```
# python -m theory break O1:n_for_n_minus_one
# python -m theory break C15:mass_of_the_cut
# ```

# %%
mutants = [("C15", "mass_of_the_cut"), ("O1", "n_for_n_minus_one")]
broken = {f"{theorem}:{name}": break_mutant(theorem, name) for theorem, name in mutants[: 1 if fast() else None]}
table(["claim", "verdict"], [[name, "refuted" if m.killed else "survived"] for name, m in broken.items()])
assert all(m.killed for m in broken.values())

# %% [markdown]
# ## Checklist
#
# Log, per token and before the first step of an update:
#
# * the sampler's log-prob of the drawn token, under the law it *drew* from: after temperature, top-p, top-k;
# * the trainer's log-prob of the same token, through the same temperature and filters, in 32 bits;
# * if it can be afforded, the trainer's log-prob under the *drawing* weights: it tells mismatch from drift;
# * the version of the weights that drew it, and which engine did; a mask of the model's own tokens.
#
# And per response: the reward before any shaping, the group it was drawn in, whether it is replayed.
#
# Then look at one dump early, one when things look best, one when they do not; keep a healthy one to compare with. A check that
# fires is a question to your code. A check that is quiet is no proof.
#
# **Try.** Take `uid` out of `log_batch`, or record the version of the *trainer*. Which checks notice?
