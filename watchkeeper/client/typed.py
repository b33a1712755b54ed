"""The public import path of the client: `from watchkeeper.client.typed import Client`."""

from __future__ import annotations

from watchkeeper.client.hub import Client

__all__ = ["Client"]
