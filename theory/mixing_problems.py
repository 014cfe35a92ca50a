"""Random mixing problems, a thousand for every active set, and solvers that share no formula with the library."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from testbed.core.seeds import SeedTree
from theory.mixing_cases import MixingCase

STREAM = SeedTree("mixing problems")
NAMES = ("v_fresh", "v_replay", "cost_fresh", "cost_replay", "bias", "budget", "cost_cap", "pool")
GOLDEN = (5**0.5 - 1) / 2
PER_SET = 1000
SETS = (
    "interior", "none_bends_up", "all_bends_up", "cost_bound_bends_up", "pool_bound_bends_up", "none_bends_down",
    "all_bends_down", "cost_bound_bends_down", "pool_bound_bends_down", "tie",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems of one active set; NaN stands for a constraint that is absent."""

    name: str
    table: np.ndarray  # [problems, 8], columns NAMES

    @property
    def regime(self) -> str:
        """What the library calls this active set."""
        return self.name.removesuffix("_bends_up").removesuffix("_bends_down")

    @property
    def bends_up(self) -> bool:
        """Whether C b^2 > D_v D_c in all of them."""
        return self.name == "interior" or self.name.endswith("_bends_up")

    def column(self, name: str) -> np.ndarray:
        """One number of every problem."""
        return self.table[:, NAMES.index(name)]

    def cases(self) -> Iterator[MixingCase]:
        """One case per problem."""
        for row in self.table.tolist():
            given = {k: v for k, v in zip(NAMES, row, strict=True) if v == v}
            yield MixingCase(name=self.name, **given)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest share that the constraints allow."""
        return allowed(self.table)

    def first(self, n: int) -> Problems:
        """Return the first n problems."""
        return Problems(self.name, self.table[:n])

    def error(self, share: np.ndarray) -> np.ndarray:
        """Error of one share per problem, from the definition."""
        return error(self.table, share)

    def error_of_first(self, share: np.ndarray) -> np.ndarray:
        """Error of one share for each of the first problems."""
        return error(self.table[: len(share)], share)


def error(table: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Squared bias plus variance over N = C / cost."""
    v_f, v_r, c_f, c_r, b, budget = table[:, :6].T
    return (share * b) ** 2 + (share * v_r + (1 - share) * v_f) * (share * c_r + (1 - share) * c_f) / budget


def allowed(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the shares with a c_r + (1-a) c_f <= tau and a N <= P."""
    _, _, c_f, c_r, _, budget, tau, pool = table.T
    low = np.where(np.isnan(tau), 0.0, np.clip((c_f - tau) / (c_f - c_r), 0.0, 1.0))
    high = np.where(np.isnan(pool), 1.0, np.minimum(pool * c_f / (budget + pool * (c_f - c_r)), 1.0))
    return low, high


@lru_cache(maxsize=4)
def problems(per_set: int = PER_SET) -> tuple[Problems, ...]:
    """Random problems sorted by their active set, `per_set` of each.

    Variances, costs and budgets spread over decades; two problems in five have a cost cap, two in five a pool.
    """
    rng = STREAM["tables"].numpy_generator()
    kept: dict[str, list[np.ndarray]] = {name: [] for name in SETS}
    while min(sum(len(t) for t in tables) for tables in kept.values()) < per_set:
        table = _random_table(rng, 20_000)
        low, high = allowed(table)
        table = table[low < high]
        labels = _labels(table)
        for name in SETS[:-1]:
            kept[name].append(table[labels == name])
        kept["tie"].append(_ties(table))
    return tuple(Problems(name, np.concatenate(kept[name])[:per_set]) for name in SETS)


def _random_table(rng: np.random.Generator, n: int) -> np.ndarray:
    spread = lambda low, high: np.exp(rng.uniform(np.log(low), np.log(high), n))  # noqa: E731
    v_f, c_f = spread(0.1, 10), spread(0.1, 10)
    v_r, c_r = v_f * (1 + spread(0.01, 10)), c_f * rng.uniform(0.02, 0.95, n)
    budget = c_f * spread(1, 1000)
    bias = rng.choice([-1.0, 1.0], n) * np.sqrt(v_f * c_f / budget) * spread(0.03, 10)
    tau = np.where(rng.random(n) < 0.4, c_r + (c_f - c_r) * rng.uniform(0.05, 1.2, n), np.nan)
    pool = np.where(rng.random(n) < 0.4, budget / c_r * rng.uniform(0.02, 1.2, n), np.nan)
    return np.stack([v_f, v_r, c_f, c_r, bias, budget, tau, pool], 1)


def _labels(table: np.ndarray) -> np.ndarray:
    """Active set of each problem, by comparison of slopes and ends; problems near a border of two sets get none."""
    v_f, v_r, c_f, c_r, b, budget = table[:, :6].T
    low, high = allowed(table)
    bend = b**2 - (v_r - v_f) * (c_f - c_r) / budget
    at = error(table, low), error(table, high)
    step = 1e-6 * (high - low)
    falls, rises = error(table, low + step) < at[0], error(table, high - step) < at[1]
    scale = np.abs(b**2) + v_r * c_f / budget
    clear = (np.abs(bend) > 1e-6 * scale) & (np.abs(at[0] - at[1]) > 1e-6 * np.maximum(*at)) & (high - low > 1e-3)
    up = bend > 0
    to_low = np.where(up, ~falls, at[0] < at[1])
    inside = up & falls & rises
    end = np.where(to_low, np.where(low == 0, "none", "cost_bound"), np.where(high == 1, "all", "pool_bound"))
    return np.where(
        ~clear, "", np.where(inside, "interior", np.char.add(end, np.where(up, "_bends_up", "_bends_down")))
    )


def _ties(table: np.ndarray) -> np.ndarray:
    """Set the bias so that both ends err equally; keep the problems whose error then bends down."""
    low, high = allowed(table)
    free = table.copy()
    free[:, 4] = 0.0
    squared = (error(free, low) - error(free, high)) / (high**2 - low**2)
    v_f, v_r, c_f, c_r, _, budget = table[:, :6].T
    good = (squared > 0) & (squared < 0.99 * (v_r - v_f) * (c_f - c_r) / budget) & (high - low > 1e-3)
    free[:, 4] = np.sqrt(np.where(good, squared, 0.0))
    return free[good]


@lru_cache(maxsize=64)
def golden_least(given: Problems, steps: int = 80) -> np.ndarray:
    """Least error of each problem by golden-section search over all of them at once; the ends count too."""
    low, high = given.ends()
    best = np.minimum(given.error(low), given.error(high))
    for _ in range(steps):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = given.error(left), given.error(right)
        best = np.minimum(best, np.minimum(at_left, at_right))
        low, high = np.where(at_left < at_right, low, left), np.where(at_left < at_right, right, high)
    return best


@lru_cache(maxsize=64)
def brent_least(given: Problems) -> np.ndarray:
    """Least error by scipy's bounded Brent search, one problem at a time; the ends count too."""
    low, high = given.ends()
    found = []
    for case, a, z in zip(given.cases(), low.tolist(), high.tolist(), strict=True):
        inner = float(minimize_scalar(case.mse, bounds=(a, z), method="bounded", options={"xatol": 1e-9}).fun)
        found.append(min(inner, case.mse(a), case.mse(z)))
    return np.array(found)


@lru_cache(maxsize=64)
def gradient_search(given: Problems, method: str = "SLSQP", first: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Shares by SLSQP or trust-constr with the exact gradient and the constraints as inequalities; and their overstep.

    Where the error bends down the search runs from both ends, and the better result counts. The solvers overstep a
    constraint by up to their own tolerance: shares are put back onto it, and by how much is returned.

    Returns
    -------
    (shares, overstep)   of the first `first` problems (None: all)
    """
    some = given if first is None else given.first(first)
    low, high = some.ends()
    found = []
    for case, a, z in zip(some.cases(), low.tolist(), high.tolist(), strict=True):
        starts = (0.5 * (a + z),) if given.bends_up else (a, z)
        reached = [_search(case, start, method) for start in starts]
        allowed_shares = [min(max(share, a), z) for share in reached]
        overstep = max(abs(x - y) for x, y in zip(reached, allowed_shares, strict=True))
        found.append((min(allowed_shares, key=case.mse), overstep))
    shares, oversteps = np.array(found).T
    return shares, oversteps


def _search(case: MixingCase, start: float, method: str) -> float:
    unit = case.mse(start)
    bias, budget, saving = case.bias, float(case.budget or 0), case.cost_fresh - case.cost_replay
    worse = case.v_replay - case.v_fresh

    def slope(x: np.ndarray) -> np.ndarray:
        variance = case.v_fresh + x * worse
        return (2 * x * bias**2 + (worse * case.cost(x) - saving * variance) / budget) / unit

    limits = []
    if case.cost_cap is not None:
        tau = case.cost_cap
        limits.append(
            {"type": "ineq", "fun": lambda x: (tau - case.cost(x)) / tau, "jac": lambda x: np.array([[saving / tau]])}
        )
    if case.pool is not None:
        pool, rate = case.pool, (budget + case.pool * saving) / (case.pool * case.cost_fresh)
        limits.append({"type": "ineq", "jac": lambda x: np.array([[-rate]]),
                       "fun": lambda x: case.cost(x) / case.cost_fresh - x * budget / (pool * case.cost_fresh)})  # fmt: skip
    extra = {"options": {"ftol": 1e-16, "maxiter": 200}}
    if method == "trust-constr":
        bend = np.array([[2 * (bias**2 - worse * saving / budget) / unit]])
        extra = {"hess": lambda x: bend, "options": {"gtol": 1e-10}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of steps that touch a bound
        done = minimize(lambda x: float(case.mse(x[0])) / unit, [start], jac=slope, bounds=[(0, 1)], constraints=limits,
                        method=method, **extra)  # fmt: skip
    return float(done.x[0])
