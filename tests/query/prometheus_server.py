"""A Prometheus over the same samples, and how its answers differ from ours."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryRange

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = [
    pytest.mark.servers,
    pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="no Prometheus on this machine"),
]
START = 1_700_000_000
SPAN = QueryRange((START + 600) * 1000, (START + 3000) * 1000, 60_000)


def openmetrics(series: dict[Labels, list[tuple[int, float]]]) -> str:
    lines = []
    for name in sorted({labels.name for labels in series}):
        lines.append(f"# TYPE {name} unknown")
        rows = [(labels, row) for labels, row in series.items() if labels.name == name]
        # The format allows no space between labels.
        written = [(str(labels).replace('", ', '",'), row) for labels, row in rows]
        lines += [f"{labels} {value!r} {at / 1000:.3f}" for labels, row in written for at, value in row]
    return "\n".join([*lines, "# EOF", ""])


class running:
    """A server that is ready inside the block and gone after it."""

    def __init__(self, home: Path, address: str) -> None:
        self.command = [
            str(PROMETHEUS),
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'tsdb'}",
            f"--web.listen-address={address}",
            "--storage.tsdb.retention.time=50y",
        ]

    def __enter__(self) -> None:
        self.server = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.server.stderr is not None
        for line in self.server.stderr:
            if "ready to receive web requests" in line:
                return
        raise AssertionError("Prometheus did not start")

    def __exit__(self, *_: object) -> None:
        self.server.terminate()
        self.server.communicate(timeout=60)


def asked(address: str, expr: str) -> dict[str, dict[int, float]] | None:
    """Their answer by series and time; None if they refuse the question."""
    query = {
        "query": expr,
        "start": str(SPAN.start_ms / 1000),
        "end": str(SPAN.end_ms / 1000),
        "step": str(SPAN.step_ms / 1000),
    }
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query_range?{urllib.parse.urlencode(query)}") as reply:
            rows = json.load(reply)["data"]["result"]
    except urllib.error.HTTPError as error:
        with error:
            return None
    return {str(Labels(row["metric"])): {int(at * 1000): float(v) for at, v in row["values"]} for row in rows}


def difference(embedded: EmbeddedEngine, expr: str, theirs: dict[str, dict[int, float]] | None) -> str | None:
    """How our answer differs from theirs, if it does; None as theirs is an error."""
    try:
        rows = embedded.range(expr, SPAN).frame.rows()
    except errors.QueryError as error:
        return None if theirs is None else f"{expr}: we refuse it: {error}"
    ours = {str(labels): dict(zip(at.tolist(), of.tolist(), strict=True)) for labels, at, of in rows}
    if theirs is None:
        return f"{expr}: they refuse it"
    if ours.keys() != theirs.keys():
        return f"{expr}: series {sorted(ours.keys() ^ theirs.keys())[:4]} are on one side only"
    for labels, row in theirs.items():
        if ours[labels].keys() != row.keys():
            return f"{expr}: {labels} has other times: {sorted(ours[labels].keys() ^ row.keys())[:4]}"
        for at, value in row.items():
            if not is_close(ours[labels][at], value):
                return f"{expr}: {labels} at {at}: {ours[labels][at]!r}, they say {value!r}"
    return None


def is_close(ours: float, theirs: float) -> bool:
    return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(ours) and math.isnan(theirs))
