"""Pairwise covering designs: every pair of levels of every two factors meets in at least one case."""

from itertools import combinations


def pairs(case):
    """All pairs of (factor, level) that a case holds."""
    return {frozenset(pair) for pair in combinations(sorted(case.items(), key=str), 2)}


def covering_design(factors):
    """Greedy: start each case from a pair not covered yet, then give every other factor the level that covers most.

    `factors` maps a name to a list of distinct levels (strings or numbers); the result is a list of cases, name -> level.
    """
    names = list(factors)
    missing = {frozenset(((a, x), (b, y))) for a, b in combinations(names, 2) for x in factors[a] for y in factors[b]}
    cases = []
    while missing:
        case = dict(sorted(min(missing, key=lambda pair: sorted(map(str, pair)))))
        for name in names:
            if name not in case:
                gain = {
                    level: sum(frozenset(((name, level), item)) in missing for item in case.items())
                    for level in factors[name]
                }
                case[name] = max(factors[name], key=lambda level: gain[level])
        missing -= pairs(case)
        cases.append({name: case[name] for name in names})  # one order, whatever the hashes
    return cases
