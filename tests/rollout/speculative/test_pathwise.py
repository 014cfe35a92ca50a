"""With noise keyed by (response, position) the engine writes the very tokens of the token-by-token engine."""

from itertools import product

import pytest
import torch

from testbed.rollout import rollout
from testbed.rollout.speculative.verify.registry import VERIFIERS
from tests.rollout.speculative.covering import covering_design, pairs
from tests.rollout.speculative.worlds import (
    CAPS,
    FACTORS,
    GROUP,
    NOISE,
    ROWS,
    T,
    env_of,
    log_prob_gap,
    plain,
    policy_of,
    sequences_that_differ,
    speculative,
)

CASES = covering_design(FACTORS)
OTHERS = [name for name in VERIFIERS if name != "membership"]
RULES = covering_design(
    {
        **FACTORS,
        "verifier": OTHERS,
        "drafter": ["greedy", "untaught"],
        "budget": ["1", "3", "6", "erratic", "concurrency"],
    }
)


def test_the_design_covers_every_pair_and_enough_responses():
    wanted = len([1 for a in FACTORS for b in FACTORS if a < b for _ in FACTORS[a] for _ in FACTORS[b]])
    assert len(set().union(*map(pairs, CASES))) == wanted
    print(f"{len(CASES)} cases cover {wanted} pairs; {len(CASES) * ROWS} responses")
    assert len(CASES) * ROWS >= 1000


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
def test_tokens_are_those_of_the_token_by_token_engine(case):
    batch = speculative(case)
    assert sequences_that_differ(case, batch) == 0
    assert log_prob_gap(case, batch) < 1e-10


@pytest.mark.parametrize("case", RULES, ids=lambda case: "-".join(case.values()))
def test_other_verifiers_write_what_the_order_of_the_batch_does_not_change(case):
    verifier = case["verifier"]
    batch = speculative(case, verifier)
    if case["order"] != "given":
        same = speculative({**case, "order": "given"}, verifier)
        assert torch.equal(batch.tokens, same.tokens) and torch.equal(batch.mask, same.mask)
    assert log_prob_gap(case, batch) < 1e-10
    caps = CAPS[case["cap"]]
    ended = (batch.tokens == 6) & batch.mask if case["eos"] == "six" else torch.zeros_like(batch.mask)
    assert bool((ended.sum(1) <= 1).all())  # nothing after an end token
    last = batch.lengths - 1
    by_end = ended.any(1) & ended.gather(1, last.clamp(min=0)[:, None])[:, 0]
    assert bool((by_end | (batch.lengths == caps)).all()) and bool((batch.lengths <= caps).all())


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
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", FACTORS["policy"])
def test_tokens_agree_in_the_full_product_of_drafters_budgets_caps_and_ends(policy):
    names = ("drafter", "budget", "cap", "eos")
    for number, levels in enumerate(product(*(FACTORS[name] for name in names))):
        case = {"policy": policy, "order": FACTORS["order"][number % 3], **dict(zip(names, levels, strict=True))}
        batch = speculative(case)
        assert sequences_that_differ(case, batch) == 0, case
        assert log_prob_gap(case, batch) < 1e-10, case
