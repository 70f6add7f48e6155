"""Products of matrices, written down for the machine: sums over rows, factors, shaped noise.

A tile of the result, some rows by some groups of sixteen columns, stays in registers while its
sums go on; how large depends on the machine. Products are rounded once where the machine can: the
last bits depend on it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from llvmlite import binding, ir

from tacit.machine.direction import directed, put_difference
from tacit.machine.lanes import ADDRESS, LANES, REAL, Array, Lanes, constant, single, zeros
from tacit.machine.loops import Matrix, carried, compiled, repeat

__all__ = ["WIDTH", "products"]

WIDTH = 32
"""What the width of a matrix must be a multiple of."""

_CHUNK = 64  # rows that are added up before memory is: more would not stay in the nearest cache
_STEP = 4  # rows of a factor that are found together


@cache
def products() -> dict[str, Callable[..., None]]:
    """Return the machine's functions by name, made when first asked for."""
    return compiled(
        {
            _moments: [*[ADDRESS] * 9, REAL],
            directed: [ADDRESS] * 6,
            _factor: [ADDRESS] * 3,
            _add_shaped: [*[ADDRESS] * 7, REAL],
        }
    )


def _tile() -> tuple[int, int]:
    """Return rows and groups of columns of a tile: 32 wide registers have room for more."""
    return (8, 2) if binding.get_host_cpu_features().get("avx512f") else (4, 1)


def _moments(
    code: ir.IRBuilder,
    rows: ir.Value,
    places: ir.Value,
    first: ir.Value,
    second: ir.Value,
    means: ir.Value,
    covs: ir.Value,
    vectors: ir.Value,
    numbers: ir.Value,
    width: ir.Value,
    unit: ir.Value,
) -> None:
    """Of two sides, the second one's places behind the first one's."""

    def side(number: ir.Value) -> None:
        own = Array(code, places, ADDRESS).row(code.mul(number, first), constant(1))
        count = code.select(code.icmp_signed("==", number, constant(0)), first, second)
        source, target = Matrix(code, rows, width), Matrix(code, covs, width).after(number)
        total = Array(code, means, REAL).row(number, width)
        _add_products(code, source, own, count, total, target)
        step = single(code, unit) / single(code, count)
        step, share = step.spread(LANES), (step * single(code, unit)).spread(LANES)

        def divide(at: ir.Value) -> None:
            total.put(at, total.get(at, LANES) * step)

        def centre(row: ir.Value) -> None:
            mean, line = total.get(row, 1) * -1.0, target.row(row)

            def subtract(at: ir.Value) -> None:
                found = line.get(at, LANES) * share
                line.put(at, found.with_product(mean.spread(LANES), total.get(at, LANES)))

            repeat(code, width, subtract, step=LANES)

        repeat(code, width, divide, step=LANES)
        repeat(code, width, centre)

    repeat(code, constant(2), side)
    put_difference(code, means, covs, vectors, numbers, width)


def _add_products(
    code: ir.IRBuilder,
    source: Matrix,
    places: Array,
    count: ir.Value,
    total: Array,
    target: Matrix,
) -> None:
    """Add up rows and, in the upper triangle, their products; the lower triangle is its copy."""
    high, groups = _tile()
    width = source.width

    def chunk(start: ir.Value, size: ir.Value) -> None:
        own = places.row(start, constant(1))

        def add_rows(at: ir.Value) -> None:
            def step(number: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
                return [held[0] + source.row(own.whole(number)).get(at, LANES)]

            found = carried(code, size, [zeros(code, REAL)], step)[1]
            total.put(at, total.get(at, LANES) + found[0])

        def tile(right: ir.Value) -> None:
            def block(left: ir.Value) -> None:
                def step(number: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
                    row = source.row(own.whole(number))
                    lefts = [row.get(code.add(left, constant(k)), 1) for k in range(high)]
                    rights = [row.get(code.add(right, constant(k)), LANES) for k in _starts(groups)]
                    return _with_outer(held, lefts, rights)

                found = iter(carried(code, size, [zeros(code, REAL)] * (high * groups), step)[1])
                for k in range(high):
                    line = target.row(code.add(left, constant(k)))
                    for column in _starts(groups):
                        at = code.add(right, constant(column))
                        line.put(at, line.get(at, LANES) + next(found))

            repeat(code, code.add(right, constant(LANES * groups)), block, step=high)

        repeat(code, width, add_rows, step=LANES)
        repeat(code, width, tile, step=LANES * groups)

    repeat(code, width, lambda at: total.put(at, zeros(code, REAL)), step=LANES)
    target.clear()
    left = repeat(code, count, lambda start: chunk(start, constant(_CHUNK)), step=_CHUNK)
    chunk(left, code.sub(count, left))
    target.fill_below(lambda row, column: target.row(column).get(row, 1))


def _factor(code: ir.IRBuilder, squares: ir.Value, count: ir.Value, width: ir.Value) -> None:
    """Leave U in the place of each ``U'U``: zero below the diagonal, not a number if there is none.

    Some rows at a time: first without what earlier rows of U account for, then among themselves.
    """

    def one(number: ir.Value) -> None:
        matrix = Matrix(code, squares, width).after(number)
        repeat(code, width, lambda first: _factor_rows(code, matrix, first), step=_STEP)
        matrix.fill_below(lambda _row, _column: zeros(code, REAL, 1))

    repeat(code, count, one)


def _factor_rows(code: ir.IRBuilder, matrix: Matrix, first: ir.Value) -> None:
    own = [code.add(first, constant(k)) for k in range(_STEP)]
    start = code.and_(first, constant(-LANES))

    def without_earlier(at: ir.Value) -> None:
        def step(number: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
            row = matrix.row(number)
            lefts = [row.get(place, 1) * -1.0 for place in own]
            return _with_outer(held, lefts, [row.get(at, LANES)])

        given = [matrix.row(place).get(at, LANES) for place in own]
        for place, found in zip(own, carried(code, first, given, step)[1], strict=True):
            matrix.row(place).put(at, found)

    def without_own(number: int) -> None:
        target, earlier = matrix.row(own[number]), own[:number]
        shares = [matrix.row(one).get(own[number], 1) * -1.0 for one in earlier]

        def subtract(at: ir.Value) -> None:
            found = target.get(at, LANES)
            for one, share in zip(earlier, shares, strict=True):
                found = found.with_product(share.spread(LANES), matrix.row(one).get(at, LANES))
            target.put(at, found)

        def divide(at: ir.Value) -> None:
            target.put(at, target.get(at, LANES) / root.spread(LANES))

        repeat(code, matrix.width, subtract, start=start, step=LANES)
        root = target.get(own[number], 1).sqrt()
        repeat(code, matrix.width, divide, start=start, step=LANES)

    repeat(code, matrix.width, without_earlier, start=start, step=LANES)
    for number in range(_STEP):
        without_own(number)


def _add_shaped(
    code: ir.IRBuilder,
    base: ir.Value,
    out: ir.Value,
    places: ir.Value,
    normals: ir.Value,
    core: ir.Value,
    count: ir.Value,
    width: ir.Value,
    scale: ir.Value,
) -> None:
    """Multiply by an upper triangular matrix and add."""
    high, groups = _tile()
    given, target = Matrix(code, base, width), Matrix(code, out, width)
    drawn, upper = Matrix(code, normals, width), Matrix(code, core, width)

    def block(first: ir.Value, high: int) -> None:
        numbers = [code.add(first, constant(k)) for k in range(high)]
        own = [Array(code, places, ADDRESS).whole(number) for number in numbers]

        def tile(column: ir.Value) -> None:
            columns = [code.add(column, constant(k)) for k in _starts(groups)]

            def step(at: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
                lefts = [drawn.row(number).get(at, 1) for number in numbers]
                return _with_outer(held, lefts, [upper.row(at).get(k, LANES) for k in columns])

            end = code.add(column, constant(LANES * groups))
            found = iter(carried(code, end, [zeros(code, REAL)] * (high * groups), step)[1])
            for place in own:
                for at in columns:
                    added = next(found) * single(code, scale).spread(LANES)
                    target.row(place).put(at, given.row(place).get(at, LANES) + added)

        repeat(code, width, tile, step=LANES * groups)

    left = repeat(code, count, lambda first: block(first, high), step=high)
    repeat(code, count, lambda first: block(first, 1), start=left)


def _with_outer(
    held: Sequence[Lanes], lefts: Sequence[Lanes], rights: Sequence[Lanes]
) -> list[Lanes]:
    """Return a tile, row by row, and the products of single lanes with groups of many."""
    pairs = [(left.spread(LANES), right) for left in lefts for right in rights]
    return [tile.with_product(*pair) for tile, pair in zip(held, pairs, strict=True)]


def _starts(groups: int) -> range:
    return range(0, LANES * groups, LANES)
