"""V2: with noise keyed by response and position, the speculative engine writes the autoregressive tokens, whatever it drafts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.core.choices import KeyedChooser, inverse_cdf
from testbed.rollout.engine import rollout
from theory import speculative_bugs as bugs
from theory.derivation import Derivation, Step
from theory.speculative_worlds import CoinStream, Peeking, Prefix, Renumbered, Speculation, drafters, streams, written
from theory.theorem import Claim, Mutant, Quantities, Theorem

ROWS = 3  # responses whose tokens are derived
COINS = 5  # most that three tokens take, with one candidate per round


def pathwise(case: Speculation) -> Quantities:
    """Tokens and log-probs of the engine under every way to speculate, beside those of the token-by-token engine."""
    noise, order = KeyedChooser(7), torch.arange(case.rows).flip(0)
    with torch.no_grad():
        plain = rollout(case.env, case.policy, case.rows, noise)
    found = [case.speculated(case.rows, noise, **way) for way in drafters(case).values()]
    turned = case.speculated(case.rows, Renumbered(noise, order), **drafters(case)["heads"])
    found.append(turned.select(order))
    alone = case.speculated(1, Renumbered(noise, torch.tensor([ROWS - 1])), **drafters(case)["heads"])
    marked = [torch.where(batch.mask, batch.tokens, -1).double() for batch in (plain, *found, alone)]
    return {
        "plain": marked[0].expand(len(found), -1, -1),
        "engine": torch.stack(marked[1:-1]),
        "plain_log_probs": plain.logp_behavior.expand(len(found), -1, -1),
        "log_probs": torch.stack([batch.logp_behavior for batch in found]),
        "alone": marked[-1][0],
        "in_company": marked[0][ROWS - 1],
        "tokens": found[0].tokens[:ROWS].double(),
    }


def streamed(case: Speculation, peeks: bool = False) -> Quantities:
    """Law of a response over every stream of coins, with and without drafts."""
    index = {y: place for place, y in enumerate(case.responses())}
    law = torch.zeros(2, len(index), dtype=torch.float64)
    every = list(streams(COINS))
    for coins in every:
        for number, drafts in enumerate((False, True)):
            stream = CoinStream(coins)
            maker = (lambda: Peeking(stream, case)) if peeks else (lambda: case.heads(1))  # noqa: B023
            options: dict[str, Any] = {"drafter": maker, "nodes": 1} if drafts else {}
            law[number, index[written(case.speculated(1, stream, **options))[0]]] += 1 / len(every)
    return {"stream_plain": law[0], "stream_law": law[1]}


def measure(case: Speculation, peeks: bool = False) -> Quantities:
    """Keyed noise with many rows, an ordinary stream with one."""
    return streamed(case, peeks) if case.rows == 1 else pathwise(case)


@lru_cache(maxsize=8)
def _derivation(prefixes: tuple[Prefix, ...], responses: tuple[Prefix, ...], rows: int, horizon: int) -> Derivation:
    def symbol(letter: str, row: int, h: Prefix) -> sp.Symbol:
        return sp.Symbol(f"{letter}{row}_" + "".join(map(str, h)))

    def reach(row: int, h: Prefix) -> sp.Expr:
        """1 where the response runs through h."""
        steps = [(symbol("e", row, h[:t]), token) for t, token in enumerate(h)]
        return sp.Mul(*[e if token else 1 - e for e, token in steps])

    def settled(row: int, h: Prefix, value: sp.Expr) -> sp.Expr:
        """In the pass that drafted the last token of h (d = 1), or as the root of the next one (d = 0)."""
        d = symbol("d", row, h)
        return d * value + (1 - d) * value

    def tokens(speculates: bool) -> list[sp.Expr]:
        out = []
        for row in range(ROWS):
            for t in range(horizon):
                here = [h for h in prefixes if len(h) == t]
                value = [(h, symbol("e", row, h)) for h in here]
                out.append(sp.Add(*[reach(row, h) * (settled(row, h, e) if speculates and t else e) for h, e in value]))
        return out

    def nested(row: int, h: Prefix, more: int) -> sp.Expr:
        """Token `more` places on, by asking node after node."""
        e = symbol("e", row, h)
        if not more:
            return e
        below = [nested(row, (*h, token), more - 1) if (*h, token) in prefixes else sp.Integer(0) for token in (0, 1)]
        return (1 - e) * below[0] + e * below[1]

    def probability(y: Prefix, speculates: bool) -> sp.Expr:
        out = sp.Integer(1)
        for t, token in enumerate(y):
            a = symbol("a", 0, y[:t])
            value = a if token else 1 - a
            out *= settled(0, y[:t], value) if speculates and t else value
        return out

    chains = []
    if rows > 1:
        chains.append([
            Step("one_pass_or_the_next", tokens(True),
                 "position t of response i is decided at the node whose path is what came before; it lies in the tree of one "
                 "pass (d = 1, for whatever reason) or is the root of the next; the law and the noise of key (i, t) are the same",
                 tex=r"y_t = \sum_h 1_h\,[d_h\,e_h + (1-d_h)\,e_h],\quad e_h = \mathrm{argmax}_v(\log p(v|h) + G_{i,t,v})"),
            Step("once", tokens(False), "either way one draw, the same one", tex=r"y_t = \sum_h 1_h\,e_h"),
            Step("autoregressive", [nested(row, (), t) for row in range(ROWS) for t in range(horizon)],
                 "which is asking node after node", quantity="tokens", tex=r"y_t = e_{y_1 \dots y_{t-1}}"),
        ])  # fmt: skip
    else:
        chains.append([
            Step("fresh_coins", [probability(y, True) for y in responses],
                 "each draw takes a coin that nothing before it, the tree included, depends on; so whatever the chance d that "
                 "the node is in the tree, its token has the law a",
                 tex=r"P(y) = \prod_t [d_h\,a_h(y_t) + (1-d_h)\,a_h(y_t)]"),
            Step("autoregressive", [probability(y, False) for y in responses], "d leaves", quantity="stream_law",
                 tex=r"P(y) = \prod_t a_h(y_t)"),
        ])  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        names = sorted({s for chain in chains for step in chain for e in step.flat() for s in e.free_symbols}, key=str)
        return {s: sp.Rational(rng.randint(1, 8), 9) for s in names}

    def bind(case: Speculation) -> dict[sp.Symbol, float]:
        noise, out = KeyedChooser(7), {}
        coins = torch.tensor([0.25, 0.75], dtype=torch.float64)
        for h, law in case.laws.items():
            if case.rows == 1:
                out[symbol("a", 0, h)] = float(inverse_cdf(law.exp().expand(2, -1), coins).double().mean())
                continue
            key = torch.tensor([[row, len(h)] for row in range(ROWS)])
            drawn = noise.choose(law.exp().expand(ROWS, -1), key).tolist()
            out |= {symbol("e", row, h): float(token) for row, token in enumerate(drawn)}
        return out

    return Derivation(chains, point, bind)


def instances() -> list[Speculation]:
    """Many rows with and without an end token, and one row under an ordinary stream."""
    return [
        Speculation(name="keyed", horizon=4, rows=24),
        Speculation(name="keyed_end_token", horizon=4, rows=24, eos=1, sharpness=1.0),
        Speculation(name="ordinary_stream", horizon=3, sharpness=0.3, layers=1),
    ]


BOTH = ("tokens", "log_probs")
THEOREM = Theorem(
    id="V2",
    kind="identity",
    title="pathwise exactness of speculation under keyed noise",
    hypotheses=(
        "token t of response i is argmax_v (log p(v | prefix) + G[i, t, v]), with Gumbel noise independent over (i, t)",
        "the walk moves to a child that holds the drawn token, and emits the token in any case",
        "with an ordinary stream instead: trees do not depend on coins yet to come, and no coin is used twice",
    ),
    statement="for any tree, budget and batch order, and even for a drafter that sees G, the engine emits the tokens of the "
    "token-by-token engine with the same noise; hence each response has law p and responses are independent. With an ordinary "
    "stream the law is p for every drafter that does not see the future",
    source="ours",
    claims=(
        Claim("tokens", "equal", "engine", "plain", "token for token, under every drafter, budget and order", tolerance=0.0),
        Claim("log_probs", "equal", "log_probs", "plain_log_probs", "and with the same recorded log-probs"),
        Claim("company", "equal", "alone", "in_company", "a response does not depend on the others of its batch", tolerance=0.0),
        Claim("stream", "equal", "stream_law", "stream_plain", "an ordinary stream: the same law over all streams of coins"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(
        tuple(case.prefixes()), tuple(case.responses()) if case.rows == 1 else (), case.rows, case.horizon
    ),
    outcome="Test an engine by keyed noise: one differing token is a bug, and no statistics are needed.",
    mutants=(
        Mutant(name="drafter_sees_the_stream", kind="hypothesis", breaks=("stream",), on=("ordinary_stream",),
               measure=lambda case: measure(case, peeks=True),
               why="the tree decides which of two coins the next token gets, knowing both"),
        Mutant(name="bonus_from_the_drafter", kind="bug", breaks=BOTH, on=("keyed",), plant=bugs.bonus_from_drafter,
               why="the token behind a leaf has the drafter's law"),
        Mutant(name="redraw_after_a_miss", kind="bug", breaks=("tokens", "log_probs", "company"), on=("keyed",),
               plant=bugs.redraw_after_miss,
               why="a miss is drawn again with other noise: candidates are favored"),
        Mutant(name="sibling_visible", kind="bug", breaks=BOTH, on=("keyed",), plant=bugs.sibling_visible,
               why="laws at nodes depend on their rivals; needs a tree with siblings"),
        Mutant(name="depth_off_by_one", kind="bug", breaks=("log_probs",), on=("keyed",), plant=bugs.depth_off_by_one,
               why="candidates are read at another position than the token-by-token engine's; no token of this instance is a "
               "near enough tie to change, so the log-probs must tell"),
        Mutant(name="cache_not_compacted", kind="bug", breaks=BOTH, on=("keyed",), plant=bugs.cache_not_compacted,
               why="later passes read rejected rivals; needs a path that is not the first one"),
    ),
)  # fmt: skip
