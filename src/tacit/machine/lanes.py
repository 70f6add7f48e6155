"""Small loops as machine code: values side by side, arrays in memory, and LLVM (``llvmlite``).

What is done to :class:`Lanes` is written down and later done to sixteen values at a time. IEEE 754
fixes additions, multiplications and square roots to the last bit, and nothing is fused or put in
another order: the same bits on every machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from llvmlite import binding, ir

__all__ = ["ADDRESS", "INT", "REAL", "WIDE", "Array", "Lanes", "compiled", "in_groups", "repeat"]

INT, REAL, WIDE = ir.IntType(32), ir.FloatType(), ir.DoubleType()
ADDRESS = ir.IntType(64)  # also that of counts and places

_BYTES = {INT: 4, REAL: 4, WIDE: 8, ADDRESS: 8}
_PASSED: dict[ir.Type, Any] = {ADDRESS: ctypes.c_int64, REAL: ctypes.c_float}


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
        kind = self._value.type
        name = f"llvm.sqrt.v{kind.count}f32"
        known = self._code.module.globals.get(name)
        root = known or ir.Function(self._code.module, ir.FunctionType(kind, [kind]), name)
        return Lanes(self._code, self._code.call(root, [self._value]))

    def pick(self, one: Lanes, zero: Lanes) -> Lanes:
        """Return a value of ``one`` where these are not zero, and of ``zero`` where they are."""
        nonzero = self._code.icmp_signed("!=", self._value, self._constant(0))
        return Lanes(self._code, self._code.select(nonzero, one.value, zero.value))

    def most(self, other: Lanes) -> Lanes:
        """Return the larger one of two integers each."""
        larger = self._code.icmp_signed(">", self._value, other.value)
        return Lanes(self._code, self._code.select(larger, self._value, other.value))

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


def repeat(
    code: ir.IRBuilder,
    stop: ir.Value,
    body: Callable[[ir.Value], None],
    *,
    start: ir.Value | None = None,
    step: int = 1,
) -> ir.Value:
    """Write a loop over whole steps up to ``stop``; return the first place that it leaves."""
    before = code.block
    test, inside, after = (code.append_basic_block() for _ in range(3))
    code.branch(test)
    code.position_at_end(test)
    place = code.phi(ADDRESS)
    following = code.add(place, ir.Constant(ADDRESS, step))
    code.cbranch(code.icmp_signed("<=", following, stop), inside, after)
    code.position_at_end(inside)
    body(place)
    code.branch(test)
    place.add_incoming(ir.Constant(ADDRESS, 0) if start is None else start, before)
    place.add_incoming(following, code.block)
    code.position_at_end(after)
    return place


def in_groups(
    code: ir.IRBuilder,
    count: ir.Value,
    body: Callable[[ir.Value, int], None],
    *,
    group: int = 16,
) -> None:
    """Write a loop over so many values at a time, and the last ones one by one."""
    left = repeat(code, count, lambda place: body(place, group), step=group)
    repeat(code, count, lambda place: body(place, 1), start=left)


Kernel = Callable[..., None]


def compiled(kernels: Mapping[Kernel, Sequence[ir.Type]]) -> dict[str, Callable[..., None]]:
    """Return kernels, given with the types of their arguments, as functions by name."""
    module = ir.Module("tacit")
    for kernel, kinds in kernels.items():
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), kernel.__name__)
        code = ir.IRBuilder(function.append_basic_block())
        kernel(code, *function.args)
        code.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), target)
    engine.finalize_object()
    return {kernel.__name__: _called(engine, kernel, kinds) for kernel, kinds in kernels.items()}


def _called(engine: Any, kernel: Kernel, kinds: Sequence[ir.Type]) -> Callable[..., None]:  # noqa: ANN401 - untyped there
    kind = ctypes.CFUNCTYPE(None, *(_PASSED[each] for each in kinds))
    call = kind(engine.get_function_address(kernel.__name__))
    call.engine = engine  # type: ignore[attr-defined] # the code lives as long as its engine
    return call
