"""An engine that answers what a test put into it, and remembers what was appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from watchkeeper.errors import QueryError
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import engine


class FakeEngine:
    """`answers` gives the vector of an expression; an expression that is not there fails, as a bad one would."""

    def __init__(self, answers: Mapping[str, Mapping[Labels, float]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.appended: list[Sample] = []
        self.asked: list[tuple[str, int]] = []
        self.on_append: Callable[[Sample], None] = lambda sample: None

    def instant(self, expr: str, at_ms: int) -> engine.Answer:
        self.asked.append((expr, at_ms))
        if expr not in self.answers:
            raise QueryError(f"the fake engine has no answer for {expr}")
        vector = self.answers[expr]
        values = np.array([[value] for value in vector.values()], dtype=np.float64).reshape(len(vector), 1)
        present = np.ones((len(vector), 1), dtype=np.bool_)
        frame = engine.Frame(list(vector), np.array([at_ms], dtype=np.int64), values, present)
        return engine.Answer(engine.Kind.VECTOR, frame)

    def range(self, expr: str, span: engine.Span) -> engine.Answer:
        raise NotImplementedError

    def series(self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        raise NotImplementedError

    def append(self, samples: Iterable[Sample], *, together: str | None = None) -> engine.Appended:
        kept = list(samples)
        self.appended += kept
        for sample in kept:
            self.on_append(sample)
        return engine.Appended(len(kept))

    def limits(self) -> engine.Limits:
        return engine.Limits()
