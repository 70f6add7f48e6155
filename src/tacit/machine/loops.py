"""Loops over lanes, and functions of the machine made of them by LLVM (``llvmlite``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from llvmlite import binding, ir

from tacit.machine.lanes import ADDRESS, LANES, REAL, Array, Lanes, constant, zeros

__all__ = ["Matrix", "carried", "compiled", "in_groups", "repeat"]

_PASSED: dict[ir.Type, Any] = {ADDRESS: ctypes.c_int64, REAL: ctypes.c_float}


@final
@dataclass(frozen=True)
class Matrix:
    """Rows of one width in memory, from an address on; all square ones lie behind each other."""

    code: ir.IRBuilder
    address: ir.Value
    width: ir.Value

    def row(self, number: ir.Value) -> Array:
        """Return a row, and what is behind it."""
        return Array(self.code, self.address, REAL).row(number, self.width)

    def after(self, number: ir.Value) -> Matrix:
        """Return the square matrix so many behind this one."""
        start = self.row(self.code.mul(number, self.width))
        return Matrix(self.code, start.address, self.width)

    def clear(self) -> None:
        """Write zeros to a square matrix."""
        first, count = self.row(constant(0)), self.code.mul(self.width, self.width)
        repeat(self.code, count, lambda at: first.put(at, zeros(self.code, REAL)), step=LANES)

    def fill_below(self, value: Callable[[ir.Value, ir.Value], Lanes]) -> None:
        """Write a single value by row and column to every place below the diagonal."""

        def line(row: ir.Value) -> None:
            target = self.row(row)
            repeat(self.code, row, lambda column: target.put(column, value(row, column)))

        repeat(self.code, self.width, line)


def repeat(
    code: ir.IRBuilder,
    stop: ir.Value,
    body: Callable[[ir.Value], None],
    *,
    start: ir.Value | None = None,
    step: int = 1,
) -> ir.Value:
    """Write a loop over whole steps up to ``stop``; return the first place that it leaves."""

    def alone(place: ir.Value, _: Sequence[Lanes]) -> list[Lanes]:
        body(place)
        return []

    return carried(code, stop, [], alone, start=start, step=step)[0]


def carried(
    code: ir.IRBuilder,
    stop: ir.Value,
    values: Sequence[Lanes],
    body: Callable[[ir.Value, Sequence[Lanes]], Sequence[Lanes]],
    *,
    start: ir.Value | None = None,
    step: int = 1,
) -> tuple[ir.Value, list[Lanes]]:
    """Write a loop that hands values on from step to step; return the place and values it leaves.

    They stay in the machine's registers, if there are enough of them.
    """
    before = code.block
    test, inside, after = (code.append_basic_block() for _ in range(3))
    code.branch(test)
    code.position_at_end(test)
    place, held = code.phi(ADDRESS), [code.phi(each.value.type) for each in values]
    following = code.add(place, constant(step))
    code.cbranch(code.icmp_signed("<=", following, stop), inside, after)
    code.position_at_end(inside)
    made = body(place, [Lanes(code, each) for each in held])
    code.branch(test)
    place.add_incoming(constant(0) if start is None else start, before)
    place.add_incoming(following, code.block)
    for each, first, later in zip(held, values, made, strict=True):
        each.add_incoming(first.value, before)
        each.add_incoming(later.value, code.block)
    code.position_at_end(after)
    return place, [Lanes(code, each) for each in held]


def in_groups(
    code: ir.IRBuilder,
    count: ir.Value,
    body: Callable[[ir.Value, int], None],
    *,
    group: int = LANES,
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
    # Interrupts are the main thread's, and one in the middle would leave LLVM's objects half made.
    with ThreadPoolExecutor(1) as pool:
        engine = pool.submit(_engine, str(module)).result()
    return {kernel.__name__: _called(engine, kernel, kinds) for kernel, kinds in kernels.items()}


def _engine(text: str) -> Any:  # noqa: ANN401 - untyped there
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), target)
    engine.finalize_object()
    return engine


def _called(engine: Any, kernel: Kernel, kinds: Sequence[ir.Type]) -> Callable[..., None]:  # noqa: ANN401 - untyped there
    kind = ctypes.CFUNCTYPE(None, *(_PASSED[each] for each in kinds))
    call = kind(engine.get_function_address(kernel.__name__))
    call.engine = engine  # type: ignore[attr-defined] # the code lives as long as its engine
    return call
