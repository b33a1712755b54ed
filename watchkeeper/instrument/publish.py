"""Series as a file that is whole at any time, or pushed to a Pushgateway under the labels of one rank.

`exports.Exporter` calls it from its own thread; what goes wrong here is an OSError of the caller.
"""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path

PUSH_SECONDS = 5.0


def replace_file(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one; a disk that is full leaves the old one."""
    # node_exporter reads *.prom, so the unfinished file has another ending.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def group_url(gateway: str, labels: Mapping[str, str]) -> str:
    """The address of one group; base64 because a name may have a slash (Pushgateway's README, "URL")."""
    parts = "".join(
        f"/{name}@base64/{base64.urlsafe_b64encode(text.encode()).decode() or '='}" for name, text in labels.items()
    )
    return f"{gateway.rstrip('/')}/metrics/job/workloads{parts}"


def push(url: str, content: bytes) -> None:
    _send(url, "PUT", content)


def take_back(url: str) -> None:
    _send(url, "DELETE", None)


def _send(url: str, method: str, content: bytes | None) -> None:
    # The scheme was checked by Exports.
    request = urllib.request.Request(url, data=content, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=PUSH_SECONDS) as answer:  # noqa: S310
        answer.read()
