"""Arithmetic that is written down as an ONNX graph instead of being computed.

A `Value` stands for an array that will be there when the graph runs. Its operators append nodes to the graph, and NumPy
arrays and numbers among their operands become constants of the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Operand: TypeAlias = "Value | NDArray[np.generic] | float"
Attribute: TypeAlias = int | float | Sequence[int]
Size: TypeAlias = int | str  # of a dimension; a name if it is known only when the graph runs

BOOL, INT64, FLOAT32, FLOAT64 = (np.dtype(kind) for kind in (np.bool_, np.int64, np.float32, np.float64))
NOTHING: Mapping[str, Attribute] = {}


class Graph:
    """Nodes in the order they are added, and constants, equal ones once."""

    def __init__(self) -> None:
        self._inputs: list[ValueInfoProto] = []
        self._nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}

    def input(self, name: str, dtype: np.dtype[np.generic], shape: Sequence[Size]) -> "Value":
        """An array that whoever runs the graph gives."""
        self._inputs.append(_described(name, dtype, shape))
        return Value(self, name, dtype)

    def constant(self, values: NDArray[np.generic]) -> "Value":
        """An array that the file holds."""
        key = values.dtype.str, values.shape, values.tobytes()
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(values, f"c{len(self._constants)}")
        return Value(self, self._constants[key].name, values.dtype)

    def nodes(
        self,
        kind: str,
        operands: "Sequence[Value]",
        dtypes: Sequence[np.dtype[np.generic]],
        attributes: Mapping[str, Attribute] = NOTHING,
    ) -> "list[Value]":
        """The outputs of a new node, one for each of `dtypes`."""
        first = f"{kind}_{len(self._nodes)}"
        names = [first if not number else f"{first}_{number}" for number in range(len(dtypes))]
        node = helper.make_node(kind, [each.name for each in operands], names, first)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return [Value(self, name, dtype) for name, dtype in zip(names, dtypes, strict=True)]

    def finish(self, name: str, outputs: "Mapping[str, tuple[Value, Sequence[Size]]]") -> GraphProto:
        """The graph of what the outputs need, and of nothing else."""
        ends = [helper.make_node("Identity", [value.name], [label], label) for label, (value, _) in outputs.items()]
        needed, kept = {source for node in ends for source in node.input}, list[NodeProto]()
        for node in reversed(self._nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                kept.append(node)
        described = [_described(label, value.dtype, shape) for label, (value, shape) in outputs.items()]
        constants = [constant for constant in self._constants.values() if constant.name in needed]
        return helper.make_graph([*reversed(kept), *ends], name, self._inputs, described, constants)


def _described(name: str, dtype: np.dtype[np.generic], shape: Sequence[Size]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _operator(kind: str, dtype: np.dtype[np.generic] | None = None) -> "Callable[[Value, Operand], Value]":
    """A method that appends a node of this kind, whose output has this type, or else that of the value."""

    def method(value: "Value", other: Operand) -> "Value":
        return value.graph.nodes(kind, [value, value.lift(other)], [value.dtype if dtype is None else dtype])[0]

    return method


def _reflected(kind: str) -> "Callable[[Value, Operand], Value]":
    def method(value: "Value", other: Operand) -> "Value":
        return value.graph.nodes(kind, [value.lift(other), value], [value.dtype])[0]

    return method


def _function(kind: str) -> "Callable[[Value], Value]":
    return lambda value: value.map(kind)


@dataclass(frozen=True, eq=False)
class Value:
    """An array of the running graph: its operators are NumPy's, element by element, and broadcast alike."""

    graph: Graph
    name: str
    dtype: np.dtype[np.generic]

    __array_ufunc__ = None  # so that an array on the left leaves the operator to the value on the right

    __add__, __radd__ = _operator("Add"), _reflected("Add")
    __sub__, __rsub__ = _operator("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _operator("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _reflected("Div")
    __matmul__ = _operator("MatMul")
    __le__, __lt__ = _operator("LessOrEqual", BOOL), _operator("Less", BOOL)
    __ge__, __gt__ = _operator("GreaterOrEqual", BOOL), _operator("Greater", BOOL)
    __and__ = _operator("And")
    __neg__, __abs__ = _function("Neg"), _function("Abs")

    def lift(self, operand: Operand) -> "Value":
        """A constant of this value's type; a value is left as it is."""
        if isinstance(operand, Value):
            return operand
        return self.graph.constant(np.asarray(operand).astype(self.dtype))

    def map(self, kind: str, attributes: Mapping[str, Attribute] = NOTHING) -> "Value":
        """One of ONNX's functions of one array: Exp, Log, Sqrt, Tanh, Relu, Not, …"""
        return self.graph.nodes(kind, [self], [self.dtype], attributes)[0]

    def square(self) -> "Value":
        """x · x."""
        return self * self

    def clip(self, low: float, high: float) -> "Value":
        """Not below `low`, not above `high`."""
        return self.graph.nodes("Clip", [self, self.lift(low), self.lift(high)], [self.dtype])[0]

    def least(self, other: Operand) -> "Value":
        """The lesser of the two."""
        return self.graph.nodes("Min", [self, self.lift(other)], [self.dtype])[0]

    def most(self, other: Operand) -> "Value":
        """The greater of the two."""
        return self.graph.nodes("Max", [self, self.lift(other)], [self.dtype])[0]

    def is_nan(self) -> "Value":
        """Where it is not a number."""
        return self.graph.nodes("IsNaN", [self], [BOOL])[0]

    def where(self, yes: "Value", no: Operand) -> "Value":
        """`yes` where this is true, else `no`, whatever that holds there."""
        return self.graph.nodes("Where", [self, yes, yes.lift(no)], [yes.dtype])[0]

    def cast(self, dtype: np.dtype[np.generic]) -> "Value":
        """The same in another type."""
        return self.graph.nodes("Cast", [self], [dtype], {"to": int(helper.np_dtype_to_tensor_dtype(dtype))})[0]

    def sum(self, *axes: int, keep: bool = False) -> "Value":
        """The sum over axes."""
        at = self.graph.constant(np.array(axes, np.int64))
        return self.graph.nodes("ReduceSum", [self, at], [self.dtype], {"keepdims": int(keep)})[0]

    def lowest(self, axis: int) -> "Value":
        """The least along an axis."""
        return self.map("ReduceMin", {"axes": [axis], "keepdims": 0})

    def highest_at(self, axis: int) -> "Value":
        """The position of the greatest along an axis, which is left with length 1."""
        return self.graph.nodes("ArgMax", [self], [INT64], {"axis": axis, "keepdims": 1})[0]

    def equals(self, other: Operand) -> "Value":
        """Where the two are the same."""
        return self.graph.nodes("Equal", [self, self.lift(other)], [BOOL])[0]

    def log_sum_exp(self, axis: int) -> "Value":
        """log Σ exp along the last axis, without overflow."""
        top = self.map("ReduceMax", {"axes": [axis], "keepdims": 1})
        return ((self - top).map("Exp").sum(axis, keep=True).map("Log") + top).squeeze(axis)

    def take(self, index: "Value | NDArray[np.int64]", axis: int = 0) -> "Value":
        """The elements at integer positions along an axis."""
        at = index if isinstance(index, Value) else self.graph.constant(index)
        return self.graph.nodes("Gather", [self, at], [self.dtype], {"axis": axis})[0]

    def zero_after(self, axis: int) -> "Value":
        """Three axes, one of them longer by a 0 at its end."""
        margins = self._positions(0, 0, 0, *(int(axis == each) for each in range(3)))
        return self.graph.nodes("Pad", [self, margins], [self.dtype])[0]

    def expand(self, axis: int) -> "Value":
        """With a new axis of length 1."""
        return self.graph.nodes("Unsqueeze", [self, self._positions(axis)], [self.dtype])[0]

    def squeeze(self, axis: int) -> "Value":
        """Without an axis of length 1."""
        return self.graph.nodes("Squeeze", [self, self._positions(axis)], [self.dtype])[0]

    def reshape(self, *shape: int) -> "Value":
        """In another shape; −1 for the one that follows from the others."""
        return self.graph.nodes("Reshape", [self, self._positions(*shape)], [self.dtype])[0]

    def transpose(self, *order: int) -> "Value":
        """With its axes in another order."""
        return self.map("Transpose", {"perm": order})

    def split(self, axis: int, *sizes: int) -> "list[Value]":
        """Its parts along an axis."""
        operands = [self, self._positions(*sizes)]
        return self.graph.nodes("Split", operands, [self.dtype] * len(sizes), {"axis": axis})

    def convolved(self, weight: NDArray[np.generic], bias: NDArray[np.generic], stride: int, padding: int) -> "Value":
        """A convolution of images (n, c, h, w)."""
        attributes = {"strides": [stride] * 2, "pads": [padding] * 4}
        return self.graph.nodes("Conv", [self, self.lift(weight), self.lift(bias)], [self.dtype], attributes)[0]

    def _positions(self, *numbers: int) -> "Value":
        return self.graph.constant(np.array(numbers, np.int64))


def joined(values: Sequence[Value], axis: int) -> Value:
    """Values side by side along an axis."""
    return values[0].graph.nodes("Concat", values, [values[0].dtype], {"axis": axis})[0]


def total(values: Sequence[Value]) -> Value:
    """Their sum, added in their order."""
    return reduce(add, values)


def softplus(raw: Value) -> Value:
    """log(1 + e^raw), to an absolute error of one rounding, without overflow."""
    return raw.most(0.0) + (1.0 + (-abs(raw)).map("Exp")).map("Log")


def log_softplus(raw: Value) -> Value:
    """log log(1 + e^raw); where e^raw is too small to be added to 1, its expansion raw − e^raw/2."""
    low = raw.least(-15.0)
    return (raw < -15.0).where(low - 0.5 * low.map("Exp"), softplus(raw.most(-16.0)).map("Log"))


def count_at_most(values: Value, tables: Sequence[NDArray[np.float64]]) -> Value:
    """How many numbers of a table are no higher than a value: `np.searchsorted(table, value, side="right")`.

    A binary search, one round of nodes for each bit of the count, so that it costs no memory.

    Parameters
    ----------
    values
        Shape (…, tables): each column has its table.
    tables
        Numbers sorted upwards.
    """
    every = values.graph.constant(np.concatenate(tables))
    counts = np.array([len(table) for table in tables], np.int64)
    before = np.cumsum(counts) - counts - 1
    found = values.graph.constant(np.zeros_like(counts))
    for bit in reversed(range(int(counts.max()).bit_length())):
        more = found + (1 << bit)
        there = (more <= counts) & (every.take(more.least(counts) + before) <= values)
        found = there.where(more, found)
    return found
