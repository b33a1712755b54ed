"""Binary operators where one side is a native histogram, for `binary`.

Two histograms can be added, subtracted and compared for equality; a histogram can be multiplied, divided and trimmed by
a number. Any other pair has no result and an info, as in Prometheus (promql/engine.go, vectorElemBinop).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from watchkeeper.kit import allowance
from watchkeeper.model import histograms
from watchkeeper.model.histograms import Histogram, ResetHint
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import estimates
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Vector, is_none
from watchkeeper.query.promql import ast
from watchkeeper.query.promql.types import TRIMS
from watchkeeper.store.histograms import Cells

OPERATIONS = {"+": "addition", "-": "subtraction"}


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side of an operator, with one row for each matched row of the other side."""

    values: Floats
    histograms: Cells | None

    def value_at(self, cell: tuple[int, int]) -> float | Histogram:
        histogram = None if self.histograms is None else self.histograms[cell]
        # A scalar has one value for all rows.
        return float(self.values[cell[-self.values.ndim :]]) if histogram is None else histogram

    @property
    def is_native(self) -> Mask | bool:
        return False if self.histograms is None else ~is_none(self.histograms)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    values: Floats
    present: Mask
    histograms: Cells | None = None


def merge_histograms(
    numbers: Results, node: ast.Binary, left: Side, right: Side, *, matched: Mask, notes: Notes
) -> Results:
    """Add the results of histograms to those of numbers; `matched` are the cells where both sides have a sample."""
    values, present = np.array(numbers.values), np.array(numbers.present)
    cells = np.full(values.shape, None, dtype=object)
    for row, step in allowance.watch(np.argwhere((left.is_native | right.is_native) & matched).tolist()):
        result = _combine_pair(node, left.value_at((row, step)), right.value_at((row, step)), notes=notes)
        if isinstance(result, Histogram):
            cells[row, step] = result
        values[row, step] = result if isinstance(result, float) else np.nan
        present[row, step] = result is not None
    return Results(values, present, cells)


def exclude_numbers(node: ast.Binary, left: Side, right: Side, *, matched: Mask, notes: Notes) -> Mask:
    """The matched cells with a histogram; a trim operator on two numbers adds an info."""
    native = np.broadcast_to(left.is_native | right.is_native, matched.shape)
    if (matched & ~native).any():
        _note_incompatible(node, "float", "float", notes=notes)
    return np.asarray(matched & native)


def stack_histograms(left: Vector, right: Vector) -> Cells | None:
    if left.histograms is None and right.histograms is None:
        return None
    return np.concatenate([side.cells for side in (left, right)])


def _combine_pair(
    node: ast.Binary, left: float | Histogram, right: float | Histogram, *, notes: Notes
) -> float | Histogram | None:
    op = node.op
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        if op in OPERATIONS:
            return _combine_histograms(node, left, right, notes=notes)
        if op in ("==", "!="):
            holds = left.is_same(right) is (op == "==")
            return float(holds) if node.returns_bool else left if holds else None
    elif isinstance(left, Histogram) and not isinstance(right, Histogram):
        if op == "*":
            return left.scaled(right).compacted()
        if op == "/":
            return left.divided(right).compacted()
        if op in TRIMS:
            return estimates.trim(left, right, keeps_below=op == "</")
    elif isinstance(right, Histogram) and not isinstance(left, Histogram) and op == "*":
        return right.scaled(left).compacted()
    kinds = ["histogram" if isinstance(side, Histogram) else "float" for side in (left, right)]
    _note_incompatible(node, *kinds, notes=notes)
    return None


def _combine_histograms(node: ast.Binary, left: Histogram, right: Histogram, *, notes: Notes) -> Histogram | None:
    try:
        combined = (
            histograms.sum_histograms([left, right]) if node.op == "+" else histograms.subtract_histograms(left, right)
        )
    except histograms.IncompatibleHistograms:
        notes.warn(f"incompatible bucket layout encountered for binary operator {node.op}", _leftmost(node))
        return None
    notes.note_combined(combined, _leftmost(node), operation=OPERATIONS[node.op])
    result = combined.histogram.compacted()
    # A difference is a gauge, even if both sides are counters.
    return result if node.op == "+" else replace(result, hint=ResetHint.GAUGE)


def _note_incompatible(node: ast.Binary, left: str, right: str, *, notes: Notes) -> None:
    problem = "incompatible sample types encountered for binary operator"
    notes.note(f'{problem} "{node.op}": {left} {node.op} {right}', _leftmost(node))


def _leftmost(node: ast.Expr) -> ast.Expr:
    """The leftmost operand, where the expression begins; the position of an operator node is that of its sign."""
    while isinstance(node, ast.Binary):
        node = node.left
    return node
