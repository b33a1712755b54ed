"""Formats a page of metrics: in Prometheus' text format 0.0.4, or in OpenMetrics 1.0 with exemplars.

A monitor writes its families to a `MetricsPage` for each scrape; `endpoint` and `publish` send the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Prometheus' client libraries allow this much for the labels of an exemplar; names are shorter.
MAX_LABEL_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation of a bucket with its trace id; `at` is Unix time in seconds."""

    trace_id: str
    value: float
    at: float


class MetricsPage:
    """A page of metric families, in the order in which they are added."""

    def __init__(self, *, is_openmetrics: bool = False) -> None:
        self.is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._name = ""

    def begin_family(self, name: str, help: str, *, is_histogram: bool = False) -> None:
        """Start a family; names that end in `_total` are counters, other names gauges."""
        self._name = name
        is_counter = name.endswith("_total")
        kind = "histogram" if is_histogram else "counter" if is_counter else "gauge"
        # OpenMetrics names the family of a counter without the suffix `_total`.
        family = name.removesuffix("_total") if self.is_openmetrics and is_counter else name
        self._lines += [f"# HELP {family} {help}", f"# TYPE {family} {kind}"]

    def add(self, labels: str, value: float, *, suffix: str = "", exemplar: Exemplar | None = None) -> None:
        line = f"{self._name}{suffix}{labels} {format_number(value)}"
        if exemplar is not None and self.is_openmetrics:
            line += f' # {{trace_id="{exemplar.trace_id}"}} {format_number(exemplar.value)} {exemplar.at:.3f}'
        self._lines.append(line)

    def add_family(self, name: str, help: str, *, labels: str, value: float | None) -> None:
        """Add a family of one series; None: unknown, so the family is omitted."""
        if value is not None:
            self.begin_family(name, help)
            self.add(labels, value)

    def encode(self) -> bytes:
        end = ["# EOF"] if self.is_openmetrics else []
        return "".join(f"{line}\n" for line in (*self._lines, *end)).encode()

    # The name until release 0.1; kept until release 0.3.
    content = encode

    @property
    def content_type(self) -> str:
        return OPENMETRICS if self.is_openmetrics else PLAIN


def format_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def format_labels(labels: Mapping[str, str]) -> str:
    """`{job_name="a",rank="0"}`; empty labels are omitted, as in Prometheus."""
    pairs = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items() if text)
    return f"{{{pairs}}}" if pairs else ""


def escape(text: str) -> str:
    """Escape a label value, truncated to MAX_LABEL_CHARACTERS."""
    return text[:MAX_LABEL_CHARACTERS].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
