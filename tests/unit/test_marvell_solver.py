"""The Marvell solver against certified optima, its own symmetries and another optimiser."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from tacit.errors import ParameterError
from tacit.protect.marvell.isotropic_solver import MarvellSolution, solve_marvell

Row = dict[str, Any]
Vector = NDArray[np.float64]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "marvell_golden.json").read_text())
LAMS = ("lam10", "lam20", "lam11", "lam21")
PLAIN: Row = {"d": 8, "p": 0.2, "u": 1.0, "v": 2.0, "gap": 0.5}

positive = st.floats(-4, 4).map(lambda x: 10.0**x)
sizes = positive | st.just(0.0)
shares = st.floats(1e-6, 0.5) | st.floats(1e-6, 0.5).map(lambda x: 1 - x)
widths = st.sampled_from([1, 2, 5, 64, 10_000])
cases = st.fixed_dictionaries({"d": widths, "p": shares, "u": sizes, "v": sizes, "gap": positive})
wide = st.floats(-150, 150).map(lambda x: 10.0**x) | st.just(0.0)
extremes = st.fixed_dictionaries(
    {"d": widths, "p": st.floats(1e-12, 1 - 1e-12), "u": wide, "v": wide, "gap": wide}
)
some = settings(max_examples=150, deadline=None)


def lams(found: MarvellSolution) -> Vector:
    return np.array([getattr(found, name) for name in LAMS])


def used(found: MarvellSolution, case: Row) -> float:
    more, p = case["d"] - 1, case["p"]
    return float(np.array([1 - p, (1 - p) * more, p, p * more]) @ lams(found))


def objective(values: Vector, case: Row) -> float:
    """The sum of ratios F = 2 (sumKL + d), as the problem is usually written."""
    d, u, v, gap = (case[name] for name in ("d", "u", "v", "gap"))
    a, A, b, B = values + np.array([u, u, v, v])
    return float((d - 1) * (A / B + B / A) + (a + gap) / b + (b + gap) / a)


def golden(key: str) -> list[tuple[Row, Row, Vector]]:
    """Give inputs, the whole row and the certified lams."""
    return [
        (
            {name: row[name] for name in "dpuv"} | {"gap": row["D"]},
            row,
            np.array([row[name] for name in LAMS]),
        )
        for row in GOLDEN[key]
    ]


def test_golden_power() -> None:
    assert len(GOLDEN["instances"]) == 302
    for case, row, want in golden("instances"):
        found = solve_marvell(**case, power=row["P"])
        assert abs(lams(found) - want).max() <= 1e-12 * want.max()
        assert found.sum_kl == pytest.approx(row["sumKL"], rel=1e-14, abs=0)
        assert 2 * (found.sum_kl + row["d"]) == pytest.approx(row["objective"], rel=1e-12, abs=0)
        assert used(found, case) <= row["P"] * (1 + 1e-14)
        assert found.power == pytest.approx(row["P"], rel=1e-14, abs=0)


def test_golden_target() -> None:
    assert len(GOLDEN["target_instances"]) == 36
    for case, row, want in golden("target_instances"):
        found = solve_marvell(**case, sum_kl=row["eps"])
        assert abs(lams(found) - want).max() <= 1e-13 * want.max()
        assert found.power == pytest.approx(row["P_min"], rel=1e-14, abs=0)
        assert found.sum_kl <= row["eps"] * (1 + 1e-14)


@some
@given(case=cases, power=positive)
def test_budget_order_and_value(case: Row, power: float) -> None:
    found = solve_marvell(**case, power=power)
    assert (lams(found) >= 0).all()
    assert found.lam20 <= found.lam10
    assert found.lam21 <= found.lam11
    assert used(found, case) <= power * (1 + 1e-12)
    assert found.power <= power
    if min(case["u"], case["v"]) > 0:
        want = objective(lams(found), case)
        assert 2 * (found.sum_kl + case["d"]) == pytest.approx(want, rel=1e-12)


@some
@given(case=cases, power=positive, c=st.integers(-120, 120).map(lambda k: 10.0**k))
def test_scale_does_not_matter(case: Row, power: float, c: float) -> None:
    found = solve_marvell(**case, power=power)
    scaled = {name: c * case[name] for name in ("u", "v", "gap")}
    other = solve_marvell(**case | scaled, power=c * power)
    assert other.sum_kl == pytest.approx(found.sum_kl, rel=1e-11, abs=0)
    assert other.power == pytest.approx(c * found.power, rel=1e-12, abs=0)
    exact = {name: 2.0**-40 * case[name] for name in ("u", "v", "gap")}
    other = solve_marvell(**case | exact, power=2.0**-40 * power)
    assert (lams(other) == 2.0**-40 * lams(found)).all()


@some
@given(case=cases, power=positive)
def test_labels_can_be_swapped(case: Row, power: float) -> None:
    p, q = case["p"], 1 - case["p"]
    found = solve_marvell(**case, q=q, power=power)
    swapped = case | {"p": q, "u": case["v"], "v": case["u"]}
    other = solve_marvell(**swapped, q=p, power=power)
    assert other.sum_kl == pytest.approx(found.sum_kl, rel=1e-13, abs=0)
    assert abs(lams(found) - lams(other)[[2, 3, 0, 1]]).max() <= 1e-8 * lams(found).max()


@some
@given(case=cases, power=positive, more=st.floats(1.01, 100))
def test_more_power_protects_better(case: Row, power: float, more: float) -> None:
    found = solve_marvell(**case, power=power)
    other = solve_marvell(**case, power=power * more)
    assert other.sum_kl < found.sum_kl


@some
@given(case=cases, power=positive)
def test_target_inverts_power(case: Row, power: float) -> None:
    found = solve_marvell(**case, power=power)
    back = solve_marvell(**case, sum_kl=found.sum_kl)
    assert back.sum_kl <= found.sum_kl * (1 + 1e-12)
    assume(power > 1e-3 * (case["u"] + case["v"]))  # below, sumKL hardly depends on the power
    assert back.power == pytest.approx(power, rel=1e-6, abs=0)


@settings(max_examples=400, deadline=None)
@given(case=extremes, amount=wide)
@example({"d": 2, "p": 0.5, "u": 5e-324, "v": 0.0, "gap": 1e280}, 1e-200)
@example({"d": 64, "p": 1e-300, "u": 1e-310, "v": 3e-308, "gap": 1e-320}, 1e-305)
@example({"d": 64, "p": 0.5, "u": 1e307, "v": 1e308, "gap": 1e300}, 1e307)
def test_extremes_give_numbers(case: Row, amount: float) -> None:
    found = solve_marvell(**case, power=amount)
    assert (lams(found) >= 0).all()
    assert np.isfinite(lams(found)).all()
    assert found.sum_kl >= 0
    target = min(max(amount, 1e-20), 1e20)
    assert solve_marvell(**case, sum_kl=target).sum_kl <= target * 1.00001


@pytest.mark.parametrize("seed", range(20))
def test_another_optimiser_finds_nothing_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case: Row = {"d": int(rng.integers(1, 30)), "p": float(rng.uniform(0.05, 0.95))}
    case |= dict(zip(("u", "v", "gap"), (10 ** rng.uniform(-1.5, 1.5, 3)).tolist(), strict=True))
    more, p, power = case["d"] - 1, case["p"], float(10 ** rng.uniform(-1.5, 1.5))
    weights = np.array([1 - p, (1 - p) * more, p, p * more])
    best = objective(lams(solve_marvell(**case, power=power)), case)
    rules = [
        {"type": "ineq", "fun": lambda x: power - weights @ x},
        {"type": "ineq", "fun": lambda x: np.array([x[0] - x[1], x[2] - x[3]])},
    ]
    tried = []
    for _ in range(8):
        start = rng.dirichlet(np.ones(4)) * power / np.maximum(weights, 0.05)
        out = minimize(
            objective,
            start,
            (case,),
            "SLSQP",
            bounds=[(0, None)] * 4,
            constraints=rules,
            options={"ftol": 1e-13, "maxiter": 500},
        )
        x = np.minimum(np.maximum(out.x, 0.0), np.maximum(out.x, 0.0)[[0, 0, 2, 2]])
        tried.append(objective(x * min(1.0, power / (weights @ x)), case))
    assert best <= min(tried) * (1 + 1e-9)
    assert min(tried) <= best * (1 + 1e-3), "the other optimiser was no test"


def convex_minimum(case: Row, power: float) -> float:
    """Minimise the sum of ratios by another route: convex in the logarithms of a, A, b and B.

    With them the objective and the budget are sums of exponentials and all else is linear, so one
    start of a general solver finds the global minimum.
    """
    d, p, u, v, gap = (case[name] for name in ("d", "p", "u", "v", "gap"))
    weights = np.array([1 - p, (1 - p) * (d - 1), p, p * (d - 1)])
    floor = np.log([u, u, v, v])
    budget = power + d * ((1 - p) * u + p * v)
    # Each row is an exponent of a term of the objective, each with its factor.
    powers = np.array(
        [[0, 1, 0, -1], [0, -1, 0, 1], [1, 0, -1, 0], [0, 0, -1, 0], [-1, 0, 1, 0], [-1, 0, 0, 0]]
    )
    factors = np.array([d - 1, d - 1, 1, gap, 1, gap])

    def value(t: Vector) -> float:
        return math.log(factors @ np.exp(powers @ t))

    def slope(t: Vector) -> Vector:
        terms = factors * np.exp(powers @ t)
        found: Vector = terms @ powers / terms.sum()
        return found

    def room(t: Vector) -> float:
        return math.log(budget) - math.log(weights @ np.exp(t))

    def room_slope(t: Vector) -> Vector:
        terms = weights * np.exp(t)
        found: Vector = -terms / terms.sum()
        return found

    order = np.array([[1.0, -1, 0, 0], [0, 0, 1, -1]])
    out = minimize(
        value,
        np.log(np.exp(floor) + power / d / 2),
        jac=slope,
        method="SLSQP",
        bounds=[(low, math.log(1e9)) for low in floor],
        constraints=[
            {"type": "ineq", "fun": room, "jac": room_slope},
            {"type": "ineq", "fun": lambda t: order @ t, "jac": lambda t: order},
        ],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    noise = np.maximum(np.exp(out.x) - np.exp(floor), 0.0)
    noise = np.minimum(noise, noise[[0, 0, 2, 2]])  # it keeps the rules up to rounding only
    spent = weights @ noise
    noise *= min(1.0, power / spent) if spent > 0 else 1.0
    return objective(noise, case)


# Which of lam10, lam20, lam11 and lam21 are above zero: every combination that an optimum can have.
PATTERNS = {"1100", "0011", "1110", "1011", "1010", "1000", "0010"}


def test_400_random_optima_agree_with_a_convex_solver_in_every_pattern() -> None:
    rng = np.random.default_rng(400)
    seen: dict[str, int] = dict.fromkeys(PATTERNS, 0)
    for _ in range(400):
        case: Row = {"d": int(rng.integers(1, 40)), "p": float(rng.uniform(0.05, 0.95))}
        drawn = (10 ** rng.uniform(-1.5, 1.5, 3)).tolist()
        case |= dict(zip(("u", "v", "gap"), drawn, strict=True))
        power = float(10 ** rng.uniform(-2, 2))
        found = solve_marvell(**case, power=power)
        seen["".join(str(int(value > 0)) for value in lams(found))] += 1
        best, other = objective(lams(found), case), convex_minimum(case, power)
        assert best <= other * (1 + 1e-8), (case, power)
        assert other <= best * (1 + 1e-6), (case, power)
    assert set(seen) == PATTERNS
    assert min(seen.values()) >= 10, seen


def test_no_power_means_no_noise() -> None:
    for power in (0.0, 1e-14):
        found = solve_marvell(**PLAIN, power=power)
        assert found.sum_kl == pytest.approx((8 * 0.5 + 0.5 + 0.25) / 2)
    assert not lams(solve_marvell(**PLAIN, power=0.0)).any()
    for change in ({"u": 0.0}, {"v": 0.0}, {"u": 0.0, "v": 0.0}, {"u": 0.0, "d": 1}):
        assert solve_marvell(**PLAIN | change, power=0.0).sum_kl == math.inf
    assert solve_marvell(**PLAIN | {"u": 0.0, "v": 0.0, "gap": 0.0}, power=3.0).sum_kl == 0.0


def test_equal_means_get_isotropic_noise() -> None:
    case, x = PLAIN | {"gap": 0.0}, 3.0 / (0.8 * 8)
    found = solve_marvell(**case, power=3.0)
    assert lams(found) == pytest.approx([x, x, 0, 0])
    assert found.sum_kl == pytest.approx(8 * (1 - x) ** 2 / (2 * (1 + x)) / 2)
    rich = solve_marvell(**case, power=100.0)
    assert (rich.sum_kl, rich.lam10, rich.lam20) == (0.0, 1.0, 1.0)
    assert rich.power == pytest.approx(6.4)
    assert solve_marvell(**case, sum_kl=0) == rich
    assert solve_marvell(**case, sum_kl=found.sum_kl).power == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"p": bad}, "p must lie strictly between 0 and 1") for bad in (0.0, 1.0, -1, 2, math.nan)]
    + [({"d": bad}, "d must be an integer") for bad in (0, -3, 2.0, 10**400, None)]
    + [({"q": bad}, "q must be 1 - p") for bad in (0.5, 0.0, -1.0, math.nan)]
    + [
        ({name: bad}, "sizes must be finite")
        for name in ("u", "v", "gap", "power")
        for bad in (-1.0, math.nan, math.inf)
    ]
    + [
        ({"power": None, "sum_kl": math.nan}, "sizes must be finite"),
        ({"power": None}, "give power or sum_kl"),
        ({"sum_kl": 1.0}, "give power or sum_kl"),
        ({"power": None, "sum_kl": 0.0}, "sum_kl must be above 0"),
        ({"power": None, "sum_kl": 1e-20, "gap": 1e300}, "must fit a float"),
    ],
)
def test_bad_input_is_refused(change: Row, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule) as caught:
        solve_marvell(**PLAIN | {"power": 3.0} | change)
    assert "\n" not in str(caught.value)
