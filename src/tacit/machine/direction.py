"""Conjugate gradients, written down for the machine: in which direction noise hides two means."""

# ruff: noqa: N803, N806 - maths symbols, as in the solver that this is for
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from llvmlite import ir

from tacit.machine.lanes import LANES, REAL, WIDE, Array, Lanes, constant, zeros
from tacit.machine.loops import Matrix, carried, repeat

__all__ = ["directed", "put_difference"]


def put_difference(
    code: ir.IRBuilder,
    means: ir.Value,
    covs: ir.Value,
    vectors: ir.Value,
    numbers: ir.Value,
    width: ir.Value,
) -> None:
    """Write D and (S0 + S1) D; then D'D, D'(S0 + S1) D, both traces, and both means' squares."""
    D, image = (Array(code, vectors, WIDE).row(constant(number), width) for number in range(2))
    S0, found = Matrix(code, covs, width), Array(code, numbers, WIDE)
    mean0, mean1 = (Array(code, means, REAL).row(constant(number), width) for number in range(2))

    def group(at: ir.Value) -> None:
        D.put(at, mean1.get(at, LANES).wide() - mean0.get(at, LANES).wide())

    repeat(code, width, group, step=LANES)
    _put_image(code, S0, D, image)
    results = [_dot(D, D, width), _dot(D, image, width)]
    results += [_trace(S0.after(constant(number))) for number in range(2)]
    results += [_dot(mean, mean, width) for mean in (mean0, mean1)]
    for number, result in enumerate(results):
        found.put(constant(number), result)


def directed(
    code: ir.IRBuilder,
    covs: ir.Value,
    vectors: ir.Value,
    numbers: ir.Value,
    noise: ir.Value,
    steps: ir.Value,
    width: ir.Value,
) -> None:
    """Find x, and write down the noise for both classes; ``matrices.directed`` says which."""
    S0 = Matrix(code, covs, width)
    D, y, x, rest, line, image = (
        Array(code, vectors, WIDE).row(constant(number), width) for number in range(6)
    )
    known = Array(code, numbers, WIDE)
    c, f, P, limit, gap, along = (known.get(constant(number), 1) for number in range(6))
    found = known.row(constant(6), constant(1))

    def step(_: ir.Value) -> None:
        size = found.get(constant(0), 1)
        with code.if_then(size.above(limit)):
            _put_image(code, S0, line, image)
            down, across = c * _dot(y, line, width) * -1.0, c * _dot(D, line, width) * -1.0
            _put(image, width, (c + 1.0, image), (down, D), (across, y), (f + P, line))
            share = size / _dot(line, image, width)
            _put(x, width, (None, x), (share, line))
            _put(rest, width, (None, rest), (share * -1.0, image))
            after = _dot(rest, rest, width)
            _put(line, width, (None, rest), (after / size, line))
            found.put(constant(0), after)

    _put(y, width, (gap / (gap * gap), y), (along / (gap * gap) * -0.5, D))
    for vector in (rest, line):
        _put(vector, width, (None, D))
    found.put(constant(0), gap)
    repeat(code, steps, step)
    _put_noise(S0, Matrix(code, noise, width), (D, y, x), (c, f, P / _dot(x, x, width)))
    for number in range(2):
        squares = _squares(Matrix(code, noise, width).after(constant(number)))
        found.put(constant(1 + number), squares)


def _put_image(code: ir.IRBuilder, S0: Matrix, vector: Array, target: Array) -> None:
    """Write (S0 + S1) times a vector: rows, each times a number, in float64."""
    S1 = S0.after(constant(1))

    def group(at: ir.Value) -> None:
        def step(row: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
            values = S0.row(row).get(at, LANES).wide() + S1.row(row).get(at, LANES).wide()
            return [held[0] + values * vector.get(row, 1).spread(LANES)]

        target.put(at, carried(code, S0.width, [zeros(code, WIDE)], step)[1][0])

    repeat(code, S0.width, group, step=LANES)


def _put_noise(
    S0: Matrix, target: Matrix, vectors: tuple[Array, ...], numbers: tuple[Lanes, ...]
) -> None:
    """Write c (W - D y' - y D') + f I + p x x' and, for each class, what the other one has."""
    code, width = S0.code, S0.width
    S1, other = S0.after(constant(1)), target.after(constant(1))
    c, f, p = numbers

    def line(row: ir.Value) -> None:
        D, y, x = (vector.get(row, 1) for vector in vectors)
        shares = (c * y * -1.0, c * D * -1.0, p * x)

        def group(at: ir.Value) -> None:
            s0, s1 = (cov.row(row).get(at, LANES).wide() for cov in (S0, S1))
            common = (s0 + s1) * c.spread(LANES)
            for share, vector in zip(shares, vectors, strict=True):
                common = common + share.spread(LANES) * vector.get(at, LANES)
            target.row(row).put(at, (common + s1).narrow())
            other.row(row).put(at, (common + s0).narrow())

        repeat(code, width, group, step=LANES)
        for noise in (target.row(row), other.row(row)):
            noise.put(row, (noise.get(row, 1).wide() + f).narrow())

    repeat(code, width, line)


def _put(to: Array, width: ir.Value, *terms: tuple[Lanes | None, Array]) -> None:
    """Write a sum of vectors, each times a number, or as it is."""

    def group(at: ir.Value) -> None:
        values = [
            vector.get(at, LANES) if share is None else vector.get(at, LANES) * share.spread(LANES)
            for share, vector in terms
        ]
        to.put(at, reduce(add, values))

    repeat(to.code, width, group, step=LANES)


def _dot(one: Array, other: Array, width: ir.Value) -> Lanes:
    def step(at: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
        left, right = (each.get(at, LANES) for each in (one, other))
        left, right = (left, right) if one.element == WIDE else (left.wide(), right.wide())
        return [held[0] + left * right]

    code = one.code
    return carried(code, width, [zeros(code, WIDE)], step, step=LANES)[1][0].sum()


def _squares(matrix: Matrix) -> Lanes:
    """Return the sum of all squares."""
    code, width = matrix.code, matrix.width

    def step(at: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
        values = matrix.row(constant(0)).get(at, LANES).wide()
        return [held[0] + values * values]

    count = code.mul(width, width)
    return carried(code, count, [zeros(code, WIDE)], step, step=LANES)[1][0].sum()


def _trace(matrix: Matrix) -> Lanes:
    def step(row: ir.Value, held: Sequence[Lanes]) -> Sequence[Lanes]:
        return [held[0] + matrix.row(row).get(row, 1).wide()]

    code = matrix.code
    return carried(code, matrix.width, [zeros(code, WIDE, 1)], step)[1][0]
