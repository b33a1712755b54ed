"""Engines over the real servers of this machine, started for a test and written to by remote write."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests import servers
from watchkeeper.config.settings import QueryEngine, QuerySettings
from watchkeeper.query.prometheus import PrometheusEngine

Settle = Callable[[], None]
"""Makes what was written visible to queries."""
# The tests write the past, which default retentions would throw away.
KEPT = "100y"


@contextlib.contextmanager
def prometheus(folder: Path, config: str = "", *, features: str = "") -> Iterator[str]:
    """Address of Debian's Prometheus with remote write open, and experiments that are named."""
    program, port = servers.require("prometheus"), servers.free_port()
    (folder / "prometheus.yml").write_text(config)
    url = f"http://127.0.0.1:{port}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.external-url={url}",
        "--web.enable-remote-write-receiver",
        f"--storage.tsdb.retention.time={KEPT}",
        *([f"--enable-feature={features}"] if features else []),
    ]
    with servers.running(command, ready_url=f"{url}/-/ready", log=folder / "prometheus.log"):
        yield url


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    """Address of VictoriaMetrics with Prometheus' look-back of five minutes."""
    program, port = servers.require("victoria-metrics"), servers.free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program,
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'victoria'}",
        f"-retentionPeriod={KEPT}",
        "-search.latencyOffset=0s",
        "-search.minStalenessInterval=5m",
        "-search.disableCache",
    ]
    with servers.running(command, ready_url=f"{url}/health", log=folder / "victoria.log"):
        yield url


def settings(url: str, **more: object) -> QuerySettings:
    access = QuerySettings(engine=QueryEngine.PROMETHEUS, url=url, write_url=f"{url}/api/v1/write", timeout="20s")
    return replace(access, **more)  # type: ignore[arg-type]


@contextlib.contextmanager
def engine_of(url: str, **more: object) -> Iterator[PrometheusEngine]:
    engine = PrometheusEngine(settings(url, **more))
    try:
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class Started:
    """A server that runs, the engine that asks it, and the way to see what was just written."""

    engine: PrometheusEngine
    settle: Settle


@contextlib.contextmanager
def started(name: str, folder: Path) -> Iterator[Started]:
    """`prometheus` or `victoria-metrics`."""
    is_prometheus = name == "prometheus"
    with (prometheus if is_prometheus else victoria_metrics)(folder) as url, engine_of(url) as engine:
        yield Started(engine, (lambda: None) if is_prometheus else (lambda: flush_victoria(url)))


def flush_victoria(url: str) -> None:
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60):
        pass
