"""Every weighting rule by name, and the lookups whose failures name the nearest word."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.errors import InputError
from testbed.weighting.catalog import (
    clipped,
    confidence,
    prefixes,
    ratios,
    rejection,
    response,
    selective,
    signed,
    token,
)
from testbed.weighting.limits import nearest
from testbed.weighting.rule import GRANULARITIES, Rule

_ORDER = (
    "none", "exact", "tis", "mis", "icepop", "band", "prefix", "segment", "segment_prefix", "sequence_product",
    "seq_tis", "seq_mis", "geo_mask", "gspo", "cispo", "ppo_clip", "decoupled_ppo", "dual_clip",
    "minpro", "pnpo", "vtrace", "spire", "cis", "kpop", "dppo_tv", "dppo_kl",
    "k1_token", "k2_token", "k3_token", "k1_sequence", "k2_sequence", "k3_sequence", "veto", "opsm",
    "sis", "obrs", "ais", "m2po", "topr", "vespo", "mu_grpo",
)  # fmt: skip
_KINDS = (ratios, token, response, clipped, prefixes, confidence, rejection, selective, signed)
_BY_NAME = {entry.name: entry for kind in _KINDS for entry in kind.ENTRIES}

RULES: dict[str, Rule] = {name: _BY_NAME[name] for name in _ORDER}

PLANNED: tuple[str, ...] = ()


def find_rule(name: object) -> Rule:
    """Return the rule of this name.

    Raises
    ------
    InputError   naming the nearest known names, or, for a rule not yet available, all that are

    Examples
    --------
    >>> find_rule("tis").parameters
    {'cap': 2.0}
    >>> find_rule("ice_pop")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: unknown weighting rule; found 'ice_pop' (did you mean icepop?)
    """
    if isinstance(name, str) and name in RULES:
        return RULES[name]
    if name in PLANNED:
        available = ", ".join(RULES)
        raise InputError("this weighting rule is not available yet", found=repr(name), hint=f"available: {available}")
    raise InputError("unknown weighting rule", found=repr(name), hint=nearest(name, RULES))


def choose_granularity(entry: Rule, granularity: object) -> str:
    """Return the granularity to use; refuse an unknown one, or one that is not the rule's own."""
    if granularity is None:
        return entry.granularity
    if granularity not in GRANULARITIES:
        raise InputError("`granularity` is unknown", found=repr(granularity), hint=nearest(granularity, GRANULARITIES))
    if granularity not in entry.granularities:
        generic = ", ".join(rule.name for rule in RULES.values() if rule.generic)
        raise InputError(
            f"rule `{entry.name}` is defined on granularity `{entry.granularity}` only",
            found=repr(granularity),
            hint=f"rules that take any granularity: {generic}",
        )
    return str(granularity)


def fill_parameters(entry: Rule, given: Mapping[str, object]) -> dict[str, object]:
    """Return the rule's parameters with defaults filled in; refuse a parameter the rule does not have."""
    unknown = [name for name in given if name not in entry.parameters]
    if unknown:
        listed = ", ".join(f"{k}={v!r}" for k, v in entry.parameters.items()) or "none"
        raise InputError(
            f"rule `{entry.name}` has no such parameter",
            found=", ".join(f"`{name}`" for name in unknown),
            hint=f"its parameters: {listed}",
        )
    return {**entry.parameters, **given}
