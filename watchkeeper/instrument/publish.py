"""Writes metrics to a file atomically, or pushes them to a Pushgateway under the labels of one rank.

`exports.Exporter` calls this in its own thread; failures are raised as OSError.
"""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path

PUSH_SECONDS = 5.0


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


def push(url: str, content: bytes) -> None:
    _send(url, "PUT", content)


def delete_group(url: str) -> None:
    _send(url, "DELETE", None)


def _send(url: str, method: str, content: bytes | None) -> None:
    # The scheme was checked by Exports.
    request = urllib.request.Request(url, data=content, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=PUSH_SECONDS) as response:  # noqa: S310
        response.read()
