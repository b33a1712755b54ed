"""Binary operators where a side is a native histogram; `binary` calls this for the samples that have met.

Histograms are added to and subtracted from each other, multiplied and divided by numbers, compared for being the same,
and trimmed at a number. Any other pair has no result, and an info says so, as in Prometheus (promql/engine.go,
vectorElemBinop).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
    """One side of an operator, laid out for the other: numbers, and histograms where there are any."""

    values: Floats
    histograms: Cells | None

    def at(self, cell: tuple[int, int]) -> float | Histogram:
        found = None if self.histograms is None else self.histograms[cell]
        # A scalar has one number for all rows.
        return float(self.values[cell[-self.values.ndim :]]) if found is None else found

    @property
    def is_native(self) -> Mask | bool:
        return False if self.histograms is None else ~is_none(self.histograms)


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    values: Floats
    present: Mask
    histograms: Cells | None = None


def put_into(plain: Results, node: ast.Binary, left: Side, right: Side, *, met: Mask, notes: Notes) -> Results:
    """The results that numbers gave, with those of histograms in their places; `met` is where both sides have one."""
    values, present = np.array(plain.values), np.array(plain.present)
    kept = np.full(values.shape, None, dtype=object)
    for row, step in np.argwhere((left.is_native | right.is_native) & met).tolist():
        found = _pair(node, left.at((row, step)), right.at((row, step)), notes=notes)
        if isinstance(found, Histogram):
            kept[row, step] = found
        values[row, step] = found if isinstance(found, float) else np.nan
        present[row, step] = found is not None
    return Results(values, present, kept)


def refuse_numbers(node: ast.Binary, left: Side, right: Side, *, met: Mask, notes: Notes) -> Mask:
    """Where a trim operator has met a histogram; of two numbers it makes nothing, and says so."""
    native = np.broadcast_to(left.is_native | right.is_native, met.shape)
    if (met & ~native).any():
        _refuse(node, "float", "float", notes=notes)
    return np.asarray(met & native)


def stacked(left: Vector, right: Vector) -> Cells | None:
    """The histograms of two vectors, one below the other."""
    if left.histograms is None and right.histograms is None:
        return None
    return np.concatenate(
        [
            np.full(side.values.shape, None, dtype=object) if side.histograms is None else side.histograms
            for side in (left, right)
        ]
    )


def _pair(
    node: ast.Binary, left: float | Histogram, right: float | Histogram, *, notes: Notes
) -> float | Histogram | None:
    op = node.op
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        if op in OPERATIONS:
            return _combined(node, left, right, notes=notes)
        if op in ("==", "!="):
            holds = left.is_same(right) is (op == "==")
            return float(holds) if node.returns_bool else left if holds else None
    elif isinstance(left, Histogram) and not isinstance(right, Histogram):
        if op == "*":
            return left.scaled(right).compacted()
        if op == "/":
            return left.divided(right).compacted()
        if op in TRIMS:
            return estimates.trimmed(left, right, keeps_below=op == "</")
    elif isinstance(right, Histogram) and not isinstance(left, Histogram) and op == "*":
        return right.scaled(left).compacted()
    kinds = ["histogram" if isinstance(side, Histogram) else "float" for side in (left, right)]
    _refuse(node, *kinds, notes=notes)
    return None


def _combined(node: ast.Binary, left: Histogram, right: Histogram, *, notes: Notes) -> Histogram | None:
    try:
        found = (
            histograms.sum_histograms([left, right]) if node.op == "+" else histograms.subtract_histograms(left, right)
        )
    except histograms.IncompatibleHistograms:
        notes.warn(f"incompatible bucket layout encountered for binary operator {node.op}", _first(node))
        return None
    notes.doubt_combined(found, _first(node), operation=OPERATIONS[node.op])
    result = found.histogram.compacted()
    # No difference is a counter, whatever both sides were.
    return result if node.op == "+" else replace(result, hint=ResetHint.GAUGE)


def _refuse(node: ast.Binary, left: str, right: str, *, notes: Notes) -> None:
    """Say that an operator does nothing with such samples."""
    what = "incompatible sample types encountered for binary operator"
    notes.tell(f'{what} "{node.op}": {left} {node.op} {right}', _first(node))


def _first(node: ast.Expr) -> ast.Expr:
    """Where the expression begins; an operator's own place is its sign."""
    while isinstance(node, ast.Binary):
        node = node.left
    return node
