"""Watchkeeper's own counters, gauges and summaries, rendered as a Prometheus page.

One `Registry` belongs to each process; stages get the metric they count on, never the registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LabelPairs = tuple[tuple[str, str], ...]


@dataclass
class Metric:
    """A family of numbers, one per label set."""

    name: str
    kind: str
    help: str
    values: dict[LabelPairs, float] = field(default_factory=dict)

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, value: float, **labels: str) -> None:
        self.values[tuple(sorted(labels.items()))] = value

    def get(self, **labels: str) -> float:
        return self.values.get(tuple(sorted(labels.items())), 0.0)

    def all(self) -> list[tuple[LabelPairs, float]]:
        """A copy, because other threads count meanwhile; what nobody has counted on yet reads 0."""
        return list(self.values.items()) or [((), 0.0)]


class Registry:
    """All metrics of a process, in the order they were declared."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def counter(self, name: str, help: str) -> Metric:
        return self._declare(Metric(name, "counter", help))

    def gauge(self, name: str, help: str) -> Metric:
        return self._declare(Metric(name, "gauge", help))

    def _declare(self, metric: Metric) -> Metric:
        return self.metrics.setdefault(metric.name, metric)

    def render(self) -> str:
        """The text exposition format 0.0.4; a metric nobody has counted on yet reads 0."""
        lines = []
        for metric in self.metrics.values():
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            for labels, value in metric.all():
                inside = ",".join(f'{name}="{escape(text)}"' for name, text in labels)
                name = f"{metric.name}{{{inside}}}" if inside else metric.name
                lines.append(f"{name} {float(value)!r}".removesuffix(".0"))
        return "\n".join(lines) + "\n"


def escape(value: str) -> str:
    """A label value as the exposition format writes it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
