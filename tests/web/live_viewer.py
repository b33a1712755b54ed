"""A client of the live updates."""

from __future__ import annotations

import json
import struct
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.web.running import Site

INTERVAL_SECONDS, PATIENCE_SECONDS = 60.0, 20.0


def viewer(site: Site, **headers: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{site.port}/api/live", additional_headers=headers, proxy=None)


def header(frame: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<I", frame)
    plain: dict[str, Any] = json.loads(frame[4 : 4 + length])
    return plain
