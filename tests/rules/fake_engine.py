"""An engine that answers what a test put into it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from watchkeeper.errors import QueryError
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine


class FakeEngine:
    """`answers` gives the vector of an expression; an expression that is not there fails, as a bad one would."""

    def __init__(self, answers: Mapping[str, Mapping[Labels, float]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.queries: list[tuple[str, int]] = []

    def instant(self, expr: str, at_ms: int) -> engine.QueryResult:
        self.queries.append((expr, at_ms))
        if expr not in self.answers:
            raise QueryError(f"the fake engine has no answer for {expr}")
        vector = self.answers[expr]
        values = np.array([[value] for value in vector.values()], dtype=np.float64).reshape(len(vector), 1)
        present = np.ones((len(vector), 1), dtype=np.bool_)
        frame = engine.Frame(list(vector), np.array([at_ms], dtype=np.int64), values, present)
        return engine.QueryResult(engine.ResultType.VECTOR, frame)
