"""Machine code in small pieces: values side by side, and arrays in memory.

What is done to :class:`Lanes` is written down and later done to sixteen values at a time. IEEE 754
fixes additions, multiplications and square roots to the last bit, and nothing is fused or put in
another order: the same bits on every machine, unless :meth:`Lanes.with_product` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, final

from llvmlite import ir

__all__ = [
    "ADDRESS",
    "INT",
    "LANES",
    "REAL",
    "WIDE",
    "Array",
    "Lanes",
    "constant",
    "single",
    "zeros",
]

INT, REAL, WIDE = ir.IntType(32), ir.FloatType(), ir.DoubleType()
ADDRESS = ir.IntType(64)  # also that of counts and places

LANES = 16
"""How many values usually go side by side."""

_BYTES = {INT: 4, REAL: 4, WIDE: 8, ADDRESS: 8}


@final
class Lanes:
    """Values that are computed side by side."""

    __slots__ = ("_code", "_value")

    def __init__(self, code: ir.IRBuilder, value: ir.Value) -> None:
        self._code, self._value = code, value

    @property
    def value(self) -> ir.Value:
        """The vector itself."""
        return self._value

    def __add__(self, other: Self | float) -> Lanes:
        return self._do("add", other)

    def __sub__(self, other: Self | float) -> Lanes:
        return self._do("sub", other)

    def __mul__(self, other: Self | float) -> Lanes:
        return self._do("mul", other)

    def __truediv__(self, other: Self) -> Lanes:
        return self._do("div", other)

    def __lshift__(self, count: int) -> Lanes:
        return self._do("shl", count)

    def __rshift__(self, count: int) -> Lanes:
        return self._do("ashr", count)

    def __and__(self, mask: int) -> Lanes:
        return self._do("and_", mask)

    def __xor__(self, other: Self) -> Lanes:
        return self._do("xor", other)

    def __or__(self, other: Self) -> Lanes:
        return self._do("or_", other)

    def real(self) -> Lanes:
        """Return integers as real numbers, rounded to the nearest."""
        return self._made(self._code.sitofp, REAL)

    def bits(self) -> Lanes:
        """Return the bits that stand for real numbers."""
        return self._made(self._code.bitcast, INT)

    def from_bits(self) -> Lanes:
        """Return the real numbers that bits stand for."""
        return self._made(self._code.bitcast, REAL)

    def wide(self) -> Lanes:
        """Return the same numbers with twice the bits."""
        return self._made(self._code.fpext, WIDE)

    def narrow(self) -> Lanes:
        """Return the same numbers rounded to half of the bits."""
        return self._made(self._code.fptrunc, REAL)

    def sqrt(self) -> Lanes:
        """Return square roots."""
        return self._known("sqrt")

    def with_product(self, one: Lanes, other: Lanes) -> Lanes:
        """Return these plus the products of two others, rounded once where the machine can."""
        return one._known("fmuladd", other, self)

    def pick(self, one: Lanes, zero: Lanes) -> Lanes:
        """Return a value of ``one`` where these are not zero, and of ``zero`` where they are."""
        nonzero = self._code.icmp_signed("!=", self._value, self._constant(0))
        return Lanes(self._code, self._code.select(nonzero, one.value, zero.value))

    def most(self, other: Lanes) -> Lanes:
        """Return the larger one of two integers each."""
        larger = self._code.icmp_signed(">", self._value, other.value)
        return Lanes(self._code, self._code.select(larger, self._value, other.value))

    def above(self, other: Lanes) -> ir.Value:
        """Return whether a single real number is larger than another."""
        larger = self._code.fcmp_ordered(">", self._value, other.value)
        return self._code.extract_element(larger, ir.Constant(INT, 0))

    def sum(self) -> Lanes:
        """Return the sum of all lanes as a single one: one half added to the other, and again."""
        half = self._value.type.count // 2
        if half == 0:
            return self
        low, high = (Lanes(self._code, self._shuffled(range(k, k + half))) for k in (0, half))
        return (low + high).sum()

    def spread(self, lanes: int) -> Lanes:
        """Return a single lane as many."""
        return Lanes(self._code, self._shuffled([0] * lanes))

    def _shuffled(self, places: Sequence[int]) -> ir.Value:
        mask = ir.Constant(ir.VectorType(INT, len(places)), list(places))
        return self._code.shuffle_vector(self._value, self._value, mask)

    def _do(self, name: str, other: Self | float) -> Lanes:
        right = other.value if isinstance(other, Lanes) else self._constant(other)
        kind = "" if isinstance(self._value.type.element, ir.IntType) else "f"
        return Lanes(self._code, getattr(self._code, kind + name)(self._value, right))

    def _known(self, name: str, *others: Lanes) -> Lanes:
        """Return what LLVM's own function of that name makes of real numbers."""
        kind, module = self._value.type, self._code.module
        name = f"llvm.{name}.v{kind.count}f32"
        values = [self._value, *(other.value for other in others)]
        known = module.globals.get(name)
        function = known or ir.Function(module, ir.FunctionType(kind, [kind] * len(values)), name)
        return Lanes(self._code, self._code.call(function, values))

    def _made(self, how: Callable[..., ir.Value], element: ir.Type) -> Lanes:
        return Lanes(self._code, how(self._value, ir.VectorType(element, self._value.type.count)))

    def _constant(self, number: float) -> ir.Value:
        kind = self._value.type
        return ir.Constant(kind, [number] * kind.count)


@final
@dataclass(frozen=True)
class Array:
    """Values of one type in memory, from an address on."""

    code: ir.IRBuilder
    address: ir.Value
    element: ir.Type

    def get(self, place: ir.Value, lanes: int) -> Lanes:
        """Return so many values from a place on."""
        size = _BYTES[self.element]
        return Lanes(self.code, self.code.load(self._pointer(place, lanes), align=size))

    def put(self, place: ir.Value, values: Lanes) -> None:
        """Write values from a place on."""
        pointer = self._pointer(place, values.value.type.count)
        self.code.store(values.value, pointer, align=_BYTES[self.element])

    def whole(self, place: ir.Value) -> ir.Value:
        """Return a single whole number, to count with."""
        return self.code.extract_element(self.get(place, 1).value, ir.Constant(INT, 0))

    def row(self, number: ir.Value, width: ir.Value) -> Array:
        """Return the array from a row of so many values on."""
        return Array(self.code, self._byte(self.code.mul(number, width)), self.element)

    def _byte(self, place: ir.Value) -> ir.Value:
        size = ir.Constant(ADDRESS, _BYTES[self.element])
        return self.code.add(self.address, self.code.mul(place, size))

    def _pointer(self, place: ir.Value, lanes: int) -> ir.Value:
        kind = ir.VectorType(self.element, lanes)
        return self.code.inttoptr(self._byte(place), kind.as_pointer())


def constant(number: int) -> ir.Value:
    """Return a place or a count that is known beforehand."""
    return ir.Constant(ADDRESS, number)


def zeros(code: ir.IRBuilder, element: ir.Type, lanes: int = LANES) -> Lanes:
    """Return lanes of nothing."""
    return Lanes(code, ir.Constant(ir.VectorType(element, lanes), [0.0] * lanes))


def single(code: ir.IRBuilder, value: ir.Value) -> Lanes:
    """Return one number as a single lane; a count as a real number."""
    value = code.sitofp(value, REAL) if value.type == ADDRESS else value
    undefined = ir.Constant(ir.VectorType(value.type, 1), ir.Undefined)
    return Lanes(code, code.insert_element(undefined, value, ir.Constant(INT, 0)))
