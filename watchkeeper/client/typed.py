"""The client under the name that programs import it by: `from watchkeeper.client.typed import Client`."""

from __future__ import annotations

from watchkeeper.client.hub import Client

__all__ = ["Client"]
