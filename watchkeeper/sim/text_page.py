"""Write metrics in the Prometheus text format 0.0.4, for all simulated exporters except dcgm-exporter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


class MetricsPage:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._name = ""

    def begin(self, name: str, kind: str, help: str) -> None:
        self._name = name
        self._parts.append(f"# HELP {name} {help}\n# TYPE {name} {kind}\n")

    def add(self, labels: str, value: float, *, suffix: str = "") -> None:
        """Add a sample; `labels` is the result of `format_labels`, or empty."""
        self._parts.append(f"{self._name}{suffix}{labels} {format_value(value)}\n")

    def write(self, name: str, kind: str, help: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """Add a whole metric family."""
        self.begin(name, kind, help)
        for labels, value in samples:
            self.add(format_labels(labels), value)

    def content(self) -> bytes:
        return "".join(self._parts).encode()


def format_labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def format_value(value: float) -> str:
    """Format a value as Go does: integers without a point, NaN, +Inf and -Inf."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
