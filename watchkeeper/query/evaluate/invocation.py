"""A call of a PromQL function: its evaluated arguments, the times, and the notes of the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from watchkeeper.query.engine import Millis
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Scalar, Text, Value, Vector, Windows
from watchkeeper.query.promql import ast
from watchkeeper.store.series import SeriesSet


@dataclass(frozen=True, slots=True, eq=False)
class Invocation:
    """A function call; the parser has checked the number and types of arguments, so accessors only assert them."""

    call: ast.FunctionCall
    args: tuple[Value, ...]
    times_ms: Millis
    notes: Notes

    def vector(self, at: int) -> Vector:
        value = self.args[at]
        assert isinstance(value, Vector)
        return value

    def windows(self, at: int) -> Windows:
        value = self.args[at]
        assert isinstance(value, Windows)
        return value

    def scalar(self, at: int) -> Scalar:
        value = self.args[at]
        assert isinstance(value, Scalar)
        return value

    def text(self, at: int) -> str:
        value = self.args[at]
        assert isinstance(value, Text)
        return value.value

    def single_series(self, values: Scalar) -> Vector:
        """A vector of one series without labels."""
        return Vector(SeriesSet([()]), values.values[None, :], np.ones((1, len(self.times_ms)), dtype=bool))


PromFunction = Callable[[Invocation], Value]
