"""Reads a monitor's page with the product's parser."""

from __future__ import annotations

import urllib.request
from typing import Protocol

from watchkeeper.instrument.page import MetricsPage
from watchkeeper.model.labels import Labels
from watchkeeper.readers.exposition import ExpositionParser


class Monitor(Protocol):
    def write(self, page: MetricsPage) -> None: ...


def text(monitor: Monitor, *, is_openmetrics: bool = False) -> bytes:
    page = MetricsPage(is_openmetrics=is_openmetrics)
    monitor.write(page)
    return page.encode()


def series(monitor: Monitor) -> dict[Labels, float]:
    return read(text(monitor))


def read(content: bytes, *, openmetrics: bool = False) -> dict[Labels, float]:
    parser = ExpositionParser()
    page = parser.parse(content, openmetrics=openmetrics)
    assert not page.problems
    return {parser.labels[handle]: value for handle, value in zip(page.handles, page.values, strict=True)}


def value(monitor: Monitor, name: str, **labels: str) -> float | None:
    """The one series of this name that has these labels."""
    values = [
        number
        for labels_of_series, number in series(monitor).items()
        if labels_of_series.get("__name__") == name
        and all(labels_of_series.get(label) == text for label, text in labels.items())
    ]
    assert len(values) < 2, f"{name}{labels} is not one series but {len(values)}"
    return values[0] if values else None


def fetch(address: str, accept: str = "text/plain") -> tuple[str, bytes]:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read()
