"""One page of series as text: Prometheus' format 0.0.4, or OpenMetrics 1.0 with its exemplars.

A monitor writes its families through a `Page` whenever somebody asks for them; `endpoint` and `publish` send the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# What Prometheus' own clients allow for an exemplar's labels, and far more than a name needs.
MAX_LABEL_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation of a bucket by the trace that it came from; `at` in seconds since 1970."""

    trace_id: str
    value: float
    at: float


class MetricsPage:
    """Families in the order in which they are begun."""

    def __init__(self, *, is_openmetrics: bool = False) -> None:
        self.is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._name = ""

    def begin(self, name: str, kind: str, help: str) -> None:
        self._name = name
        # OpenMetrics names a counter's family without the ending of its series.
        family = name.removesuffix("_total") if self.is_openmetrics and kind == "counter" else name
        self._lines += [f"# HELP {family} {help}", f"# TYPE {family} {kind}"]

    def add(self, labels: str, value: float, *, suffix: str = "", exemplar: Exemplar | None = None) -> None:
        line = f"{self._name}{suffix}{labels} {number(value)}"
        if exemplar is not None and self.is_openmetrics:
            line += f' # {{trace_id="{exemplar.trace_id}"}} {number(exemplar.value)} {exemplar.at:.3f}'
        self._lines.append(line)

    def single(self, name: str, kind: str, help: str, *, labels: str, value: float | None) -> None:
        """A family of one series; None is not known, and then it is not there."""
        if value is not None:
            self.begin(name, kind, help)
            self.add(labels, value)

    def content(self) -> bytes:
        end = ["# EOF"] if self.is_openmetrics else []
        return "".join(f"{line}\n" for line in (*self._lines, *end)).encode()

    @property
    def content_type(self) -> str:
        return OPENMETRICS if self.is_openmetrics else PLAIN


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def braces(labels: Mapping[str, str]) -> str:
    """`{job_name="a",rank="0"}`; a label without a value is left out, as Prometheus would do."""
    inner = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items() if text)
    return f"{{{inner}}}" if inner else ""


def escape(text: str) -> str:
    """A label's value, cut to what is shown anywhere."""
    return text[:MAX_LABEL_CHARACTERS].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
