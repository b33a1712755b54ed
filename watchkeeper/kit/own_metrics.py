"""Watchkeeper's own counters and gauges, rendered in the Prometheus text format.

Each process has one `Registry`; stages get the metrics that they change, never the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Metrics that were renamed after release 0.1: each is also exposed under its old name until release 0.3.
DEPRECATED_NAMES = {
    "watchkeeper_agent_events_rate_limited_total": "watchkeeper_agent_events_held_back_total",
    "watchkeeper_hub_leader": "watchkeeper_hub_leads",
    "watchkeeper_hub_leadership_acquired_total": "watchkeeper_hub_leads_begun_total",
    "watchkeeper_hub_logins_total": "watchkeeper_hub_sign_ins_total",
    "watchkeeper_hub_signals_dropped": "watchkeeper_hub_signals_left_out",
    "watchkeeper_remediate_nodes_out_of_service": "watchkeeper_remediate_nodes_out",
    "watchkeeper_remote_write_samples_dropped_total": "watchkeeper_web_samples_left_out_total",
    "watchkeeper_rules_backfilled_evaluations_total": "watchkeeper_rules_caught_up_turns_total",
    "watchkeeper_rules_missed_evaluations_total": "watchkeeper_rules_missed_turns_total",
    "watchkeeper_scrape_samples_dropped_total": "watchkeeper_collect_samples_left_out_total",
}

LabelPairs = tuple[tuple[str, str], ...]


@dataclass
class Metric:
    name: str
    kind: str
    help: str
    values: dict[LabelPairs, float] = field(default_factory=dict)

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, value: float, **labels: str) -> None:
        self.values[tuple(sorted(labels.items()))] = value

    def set_all(self, values: Mapping[LabelPairs, float]) -> None:
        """Replace all values, so that label sets that ended are no longer exposed."""
        self.values = {tuple(sorted(labels)): value for labels, value in values.items()}

    def get(self, **labels: str) -> float:
        return self.values.get(tuple(sorted(labels.items())), 0.0)

    def samples(self) -> list[tuple[LabelPairs, float]]:
        """A copy of all values, because other threads may add some. A metric without values reads 0."""
        return list(self.values.items()) or [((), 0.0)]


class Registry:
    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}

    def counter(self, name: str, help: str) -> Metric:
        return self.metrics.setdefault(name, Metric(name, "counter", help))

    def gauge(self, name: str, help: str) -> Metric:
        return self.metrics.setdefault(name, Metric(name, "gauge", help))

    def render(self) -> str:
        lines: list[str] = []
        for metric in self.metrics.values():
            lines += _render_family(metric, metric.name, metric.help)
            if old := DEPRECATED_NAMES.get(metric.name):
                lines += _render_family(metric, old, f"Deprecated: use {metric.name}.")
        return "\n".join(lines) + "\n"


def _render_family(metric: Metric, name: str, help: str) -> list[str]:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {metric.kind}"]
    for labels, value in metric.samples():
        label_text = ",".join(f'{label}="{escape(text)}"' for label, text in labels)
        series = f"{name}{{{label_text}}}" if label_text else name
        lines.append(f"{series} {float(value)!r}".removesuffix(".0"))
    return lines


def escape(value: str) -> str:
    """A label value with the escapes of the exposition format."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
