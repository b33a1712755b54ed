"""The default URL of a hub; separate from `client.hub`, so that an agent need not load the client."""

from __future__ import annotations

DEFAULT_URL = "http://127.0.0.1:9480"
