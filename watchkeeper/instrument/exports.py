"""Exports a program's metrics: on a port with a file_sd list, to a file for node_exporter, to a Pushgateway.

`Exports` has the settings, from code or from environment variables, so that the job's manifest can set them. Settings
that would open a port to the network by accident are refused when the program starts; later errors are logged once and
do not affect the program.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import ipaddress
import json
import logging
import os
import re
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from watchkeeper.instrument.endpoint import Endpoint
from watchkeeper.instrument.page import MetricsPage

log = logging.getLogger("watchkeeper.instrument")
EVERY_SECONDS = 15.0
MIN_SECONDS = 0.05
# Time limit for the last file and push, so that the program does not hang at its exit.
CLOSE_TIMEOUT_SECONDS = 5.0
PUSH_SECONDS = 5.0
PREFIX = "WATCHKEEPER_METRICS_"
# Replaced in file names.
UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


class ExportRefused(ValueError):
    """Settings that are invalid or unsafe; the message says which, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Exports:
    """Where metrics are exported; without a setting, nowhere.

    `port` 0 is any free port; each rank of a node adds its local rank to other ports. `announce` is a directory for
    file_sd lists, `textfile` a directory that node_exporter reads, `gateway` the URL of a Pushgateway.
    """

    port: int | None = None
    host: str = "127.0.0.1"
    is_open: bool = False
    announce: Path | None = None
    textfile: Path | None = None
    gateway: str | None = None
    every_seconds: float = EVERY_SECONDS

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 65_536:
            raise ExportRefused(f"exports: port {self.port} is not between 0 and 65535")
        if self.port is not None and not self.is_open and not _is_loopback(self.host):
            raise ExportRefused(
                f"exports: {self.host} can be reached from the network, and the page has no authentication. "
                f"To allow that, write Exports(…, host={self.host!r}, is_open=True) or set {PREFIX}OPEN=1"
            )
        if self.announce is not None and self.port is None:
            raise ExportRefused(
                f"exports: there is no port to announce in {self.announce}. Write Exports(port=0, announce=…)"
            )
        if self.gateway is not None and not self.gateway.startswith(("http://", "https://")):
            raise ExportRefused(
                f"exports: the gateway {self.gateway!r} is not a URL. Write one such as http://gateway.example:9091"
            )


def from_environment(environment: Mapping[str, str] | None = None) -> Exports:
    """Settings from WATCHKEEPER_METRICS_PORT, _HOST, _OPEN, _ANNOUNCE, _TEXTFILE, _GATEWAY and _SECONDS."""
    variables = os.environ if environment is None else environment

    def read_variable(name: str) -> str | None:
        return variables.get(PREFIX + name) or None

    port, seconds = read_variable("PORT"), read_variable("SECONDS")
    try:
        port_number = None if port is None else int(port)
        every_seconds = EVERY_SECONDS if seconds is None else float(seconds)
    except ValueError as error:
        raise ExportRefused(f"{PREFIX}PORT={port or ''} {PREFIX}SECONDS={seconds or ''}: must be numbers") from error
    host, is_open, gateway = (
        read_variable("HOST") or "127.0.0.1",
        read_variable("OPEN") == "1",
        read_variable("GATEWAY"),
    )
    announce, textfile = (Path(path) if (path := read_variable(name)) else None for name in ("ANNOUNCE", "TEXTFILE"))
    return Exports(port_number, host, is_open, announce, textfile, gateway, every_seconds)


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """A monitor to export: `name` for files, `labels` for the gateway's group, `local_rank` for the port."""

    name: str
    labels: Mapping[str, str]
    write: Callable[[MetricsPage], None]
    node: str = ""
    local_rank: int = 0

    @property
    def file_name(self) -> str:
        return f"watchkeeper_{UNSAFE_CHARACTERS.sub('-', self.name)[:100]}"

    def render(self, *, is_openmetrics: bool = False) -> MetricsPage:
        page = MetricsPage(is_openmetrics=is_openmetrics)
        self.write(page)
        return page


class Exporter:
    """Exports the metrics of one monitor, from its creation until `close`."""

    def __init__(self, exports: Exports, source: MetricsSource) -> None:
        self._exports, self._source = exports, source
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing_outputs: set[str] = set()
        self._list_path = None if exports.announce is None else exports.announce / f"{source.file_name}.json"
        self._target_list = b""
        self.endpoint: Endpoint | None = None
        if exports != Exports():
            # For a program that never closes its monitor.
            atexit.register(self.close)
        if exports.port is not None:
            self._listen(exports.port)
        if exports.textfile is not None or exports.gateway is not None:
            self._thread = threading.Thread(target=self._publish, name="watchkeeper-publish", daemon=True)
            self._thread.start()

    @property
    def address(self) -> str | None:
        return None if self.endpoint is None else self.endpoint.address

    def close(self) -> None:
        """Stop serving, and delete files and pushed metrics, so that no metrics of an ended program remain."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        if self.endpoint is not None:
            self.endpoint.close()
            with contextlib.suppress(OSError):
                # A restarted rank may have written a list under the same name already.
                if self._list_path is not None and self._list_path.read_bytes() == self._target_list:
                    self._list_path.unlink()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _listen(self, port: int) -> None:
        rank_port = port + self._source.local_rank if port else 0
        try:
            self.endpoint = Endpoint(self._exports.host, rank_port, self._source.render)
        except OSError as error:
            log.warning("metrics page not served, cannot listen on %s:%d: %s", self._exports.host, rank_port, error)
            return
        if self._list_path is not None:
            # Other nodes read the list, where a loopback address would be their own.
            host = self._exports.host
            host = self._source.node if host in ("0.0.0.0", "::") and self._source.node else host  # noqa: S104
            target = f"[{host}]:{self.endpoint.port}" if ":" in host else f"{host}:{self.endpoint.port}"
            self._target_list = json.dumps([{"targets": [target], "labels": {"job": "workloads"}}]).encode()
            self._try_export("announcement", partial(replace_file, self._list_path, self._target_list))

    def _publish(self) -> None:
        textfile, gateway = self._exports.textfile, self._exports.gateway
        path = None if textfile is None else textfile / f"{self._source.file_name}.prom"
        url = None if gateway is None else group_url(gateway, self._source.labels)
        while not self._stop.wait(max(MIN_SECONDS, self._exports.every_seconds)):
            content = self._try_export("page", lambda: self._source.render().encode())
            if content is None:
                continue
            if path is not None:
                self._try_export("textfile", partial(replace_file, path, content))
            if url is not None:
                self._try_export("gateway", partial(send, url, "PUT", content))
        if path is not None:
            self._try_export("textfile", lambda: path.unlink(missing_ok=True))
        if url is not None:
            self._try_export("gateway", partial(send, url, "DELETE"))

    def _try_export(self, output: str, call: Callable[[], bytes | None]) -> bytes | None:
        """Run one export and log a change. Deliberately any error is caught: an export must not end the program."""
        try:
            result = call()
        except Exception as error:
            if output not in self._failing_outputs:
                self._failing_outputs.add(output)
                log.warning("metrics export failed, retrying output=%s error=%s", output, error)
            return None
        if output in self._failing_outputs:
            self._failing_outputs.discard(output)
            log.info("metrics export recovered output=%s", output)
        return result


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically; if the disk is full, the old file stays."""
    # node_exporter reads *.prom, so the temporary file has another suffix.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def group_url(gateway: str, labels: Mapping[str, str]) -> str:
    """The URL of one group; in base64, because a name may contain a slash (Pushgateway's README, "URL")."""
    parts = "".join(
        f"/{name}@base64/{base64.urlsafe_b64encode(text.encode()).decode() or '='}" for name, text in labels.items()
    )
    return f"{gateway.rstrip('/')}/metrics/job/workloads{parts}"


def send(url: str, method: str, content: bytes | None = None) -> None:
    """Push metrics to a Pushgateway (PUT), or delete their group (DELETE)."""
    # The scheme was checked by Exports.
    request = urllib.request.Request(url, data=content, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=PUSH_SECONDS) as response:  # noqa: S310
        response.read()
