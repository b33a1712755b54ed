"""Engines over the real servers of this machine, started for a test and written to by remote write."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests import servers
from watchkeeper.config.settings import Query, QueryEngine
from watchkeeper.query.prometheus import PrometheusEngine

# The tests write the past, which default retentions would throw away.
KEPT = "100y"


@contextlib.contextmanager
def prometheus(folder: Path, config: str = "") -> Iterator[str]:
    """Address of Debian's Prometheus with remote write open."""
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


def settings(url: str, **more: object) -> Query:
    access = Query(engine=QueryEngine.PROMETHEUS, url=url, write_url=f"{url}/api/v1/write", timeout="20s")
    return replace(access, **more)  # type: ignore[arg-type]


@contextlib.contextmanager
def engine_of(url: str, **more: object) -> Iterator[PrometheusEngine]:
    engine = PrometheusEngine(settings(url, **more))
    try:
        yield engine
    finally:
        engine.close()


def flush_victoria(url: str) -> None:
    """Make what was written visible to queries."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=10):
        pass


def wait_for(is_so: Callable[[], bool], *, seconds: float = 15.0) -> None:
    """Wait until a condition holds that another program brings about."""
    import time

    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.05)
