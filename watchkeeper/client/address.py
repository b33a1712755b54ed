"""Where a hub is unless told otherwise; apart from `client.hub`, which an agent that only names it need not load."""

from __future__ import annotations

DEFAULT_URL = "http://127.0.0.1:9480"
