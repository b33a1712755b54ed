"""An exemplar: one observation behind a counter or bucket, with labels that lead to it, such as a trace id.

`readers.exposition` and remote write read them, `store.exemplars` keeps the newest, and Grafana queries them.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.model.labels import Labels

# OpenMetrics 1.0: names and values of an exemplar's labels have at most this many characters together.
MAX_LABEL_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Exemplar:
    """`labels` belong to the observation, not to its series."""

    labels: Labels
    value: float
    at_ms: int

    @property
    def is_too_long(self) -> bool:
        return sum(len(name) + len(value) for name, value in self.labels.pairs) > MAX_LABEL_CHARACTERS
