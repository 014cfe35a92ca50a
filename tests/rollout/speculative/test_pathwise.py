"""With noise keyed by (response, position) the engine writes tokens that are known beforehand, under every verifier.

Under membership they are those of the token-by-token engine, which knows nothing of drafts. Under another verifier they depend
on the draft and on coins, so no engine without drafts could write them: there the truth is the same rule on the same noise,
asked with laws from a pass of its own over every prefix (`fresh_passes`), in one order of the batch.
"""

from itertools import combinations, product

import pytest
import torch

from testbed.rollout import rollout
from testbed.rollout.speculative.verify.registry import VERIFIERS
from tests.rollout.speculative.covering import covering_design, pairs
from tests.rollout.speculative.fresh_passes import with_fresh_passes
from tests.rollout.speculative.worlds import (
    CAPS,
    FACTORS,
    GROUP,
    NOISE,
    ORDERS,
    ROWS,
    T,
    env_of,
    log_prob_gap,
    plain,
    policy_of,
    sequences_that_differ,
    speculative,
    written,
)
from theory import speculative_bugs as bugs

OTHERS = [name for name in VERIFIERS if name != "membership"]
ASK = [name for name, rule in VERIFIERS.items() if rule.needs_drafter]
LAWS = ["greedy", "untaught"]  # drafters whose trees can be drawn
CASES = [{**case, "verifier": "membership"} for case in covering_design(FACTORS)]
RULES = covering_design({**FACTORS, "verifier": OTHERS, "drafter": LAWS})
RULES += [
    {name: FACTORS[name][number % len(FACTORS[name])] for name in FACTORS}
    | {"drafter": drafter, "verifier": "point_mass"}
    for number, drafter in enumerate(FACTORS["drafter"])
]


def possible(pair):
    """Whether a drafter can be asked by a verifier; any other pair of levels can be had."""
    levels = dict(pair)
    return levels.get("verifier") not in ASK or levels.get("drafter", LAWS[0]) in LAWS


def responses_that_differ(case):
    """Number of responses of a case that are not what they must be, and the batch."""
    if case["verifier"] == "membership":
        batch = speculative(case)
        return sequences_that_differ(case, batch), batch
    rounds = []
    batch = speculative(case, case["verifier"], watch=rounds.append)
    numbers = ORDERS[case["order"]]
    truth = with_fresh_passes(case, case["verifier"], [(one, numbers[one.frontier.rows]) for one in rounds])
    return sum(list(mine) != right for mine, right in zip(written(batch), truth, strict=True)), batch


def test_the_design_covers_every_pair_and_enough_responses(says):
    """Pairs of {drafter}, {budget}, {verifier}, {order of the batch}, {cap}, {policy}, {end token}."""
    levels = {**FACTORS, "verifier": list(VERIFIERS)}
    every = {frozenset(((a, x), (b, y))) for a, b in combinations(levels, 2) for x in levels[a] for y in levels[b]}
    wanted = {pair for pair in every if possible(pair)}
    assert set().union(*map(pairs, CASES + RULES)) == wanted
    assert len(every) - len(wanted) == len(ASK) * (len(FACTORS["drafter"]) - len(LAWS))
    number = len(CASES) + len(RULES)
    says(f"{number} cases cover {len(wanted)} pairs of levels; {number * ROWS} responses are compared")
    assert number * ROWS >= 1000


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
def test_tokens_are_those_of_the_token_by_token_engine(case):
    wrong, batch = responses_that_differ(case)
    assert wrong == 0
    assert log_prob_gap(case, batch) < 1e-10


@pytest.mark.parametrize("case", RULES, ids=lambda case: "-".join(case.values()))
def test_tokens_under_another_verifier_are_those_of_fresh_passes(case):
    wrong, batch = responses_that_differ(case)
    assert wrong == 0
    assert log_prob_gap(case, batch) < 1e-10
    caps = CAPS[case["cap"]]
    ended = (batch.tokens == 6) & batch.mask if case["eos"] == "six" else torch.zeros_like(batch.mask)
    assert bool((ended.sum(1) <= 1).all())  # nothing after an end token
    last = batch.lengths - 1
    by_end = ended.any(1) & ended.gather(1, last.clamp(min=0)[:, None])[:, 0]
    assert bool((by_end | (batch.lengths == caps)).all()) and bool((batch.lengths <= caps).all())


BUGS = [(bugs.depth_off_by_one, name) for name in OTHERS]
BUGS += [  # which chains, having no siblings, are safe from
    (plant, name)
    for plant in (bugs.cache_not_compacted, bugs.sibling_visible)
    for name in OTHERS
    if VERIFIERS[name].drafts != "chain"
]


@pytest.mark.parametrize(("plant", "verifier"), BUGS)
def test_fresh_passes_find_bugs_of_the_engines_pass(plant, verifier):
    case = {"policy": "dense", "drafter": "greedy", "budget": "6", "order": "shuffled", "cap": "horizon", "eos": "none"}
    with plant():
        assert responses_that_differ({**case, "verifier": verifier})[0] > 0


@pytest.mark.parametrize("verifier", ASK)
def test_other_verifiers_do_not_write_what_the_token_by_token_engine_writes(verifier):
    """Their coins decide too, so that equality with it is no test of them."""
    case = {"policy": "dense", "drafter": "greedy", "budget": "6", "order": "given", "cap": "horizon", "eos": "none"}
    assert sequences_that_differ(case, speculative(case, verifier)) > ROWS / 2


def test_drafts_are_accepted_so_that_equality_says_something():
    rounds = []
    speculative(
        {"policy": "dense", "drafter": "greedy", "budget": "6", "order": "given", "cap": "horizon", "eos": "none"},
        watch=rounds.append,
    )
    accepted = sum(int(r.emitted.sum()) for r in rounds) / sum(len(r.frontier.rows) for r in rounds)
    assert accepted > 1.5 and len(rounds) < T - 2
    assert {int(a) for r in rounds for a in r.run.accepted} == {0, 1, 2, 3}


def test_single_precision_differs_only_at_near_ties():
    """A response may part ways only where the two best of log p + noise are closer than 1e-4."""
    case = {"policy": "dense", "drafter": "greedy", "budget": "6", "order": "given", "cap": "horizon", "eos": "none"}
    truth = rollout(env_of("none"), policy_of("dense", "float32"), ROWS, NOISE, group=GROUP, max_tokens=CAPS["horizon"])
    batch = speculative(case, dtype="float32")
    parted = torch.nonzero((batch.tokens != truth.tokens).any(1))[:, 0].tolist()
    for row in parted:
        at = int((batch.tokens[row] != truth.tokens[row]).long().argmax())
        with torch.no_grad():
            law = policy_of("dense").at(GROUP[row : row + 1]).next_log_probs(truth.tokens[row : row + 1, :at])[0]
        best = (law + NOISE._gumbel(row, at, len(law))).topk(2).values
        assert float(best[0] - best[1]) < 1e-4
    assert len(parted) <= 2
    assert plain("dense", "horizon", "none").batch_size == ROWS


def test_ends_and_caps_fall_on_every_place_of_an_accepted_run():
    """Drafts that know the future run on behind end tokens and caps; what is kept stops at the first of them."""
    ends, caps = set(), set()
    for cap in CAPS:
        case = {"policy": "dense", "drafter": "clairvoyant", "budget": "6", "order": "given", "cap": cap, "eos": "six"}
        rounds = []
        assert sequences_that_differ(case, speculative(case, watch=rounds.append)) == 0
        for finished in rounds:
            kept = finished.emitted.sum(1)
            last = finished.run.tokens.gather(1, kept[:, None] - 1)[:, 0]
            full = finished.frontier.position + kept == CAPS[cap][finished.frontier.rows]
            ends |= {int(n) for n in kept[last == 6]}
            caps |= {int(n) for n in kept[full & (last != 6)]}
    assert ends == caps == {1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verifier", list(VERIFIERS))
def test_tokens_agree_in_the_full_product_of_drafters_budgets_orders_and_caps(verifier, says):
    """End tokens take turns, and so do policies but for membership, which has all of them; rules that draw their trees are
    asked with the drafters that have laws."""
    levels = {name: FACTORS[name] for name in ("drafter", "budget", "order", "cap")}
    if verifier in ASK:
        levels["drafter"] = LAWS
    count = 0
    for number, chosen in enumerate(product(*levels.values())):
        case = dict(zip(levels, chosen, strict=True)) | {"eos": FACTORS["eos"][number % 2], "verifier": verifier}
        turn = sum(levels[name].index(level) for name, level in case.items() if name in levels)
        for policy in FACTORS["policy"] if verifier == "membership" else [FACTORS["policy"][turn % 3]]:
            wrong, batch = responses_that_differ(case | {"policy": policy})
            assert wrong == 0, (policy, case)
            assert log_prob_gap(case | {"policy": policy}, batch) < 1e-10, (policy, case)
            count += batch.batch_size
    says(f"0 of {count} responses differ")
