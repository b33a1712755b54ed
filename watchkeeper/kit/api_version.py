"""The version of the hub's HTTP API, sent in each answer: `web` writes it, `client` reads it.

Within a version, the API only grows; a change that breaks clients gets the next version, and both versions are served
for one release. Prometheus' API under /api/v1 keeps the version and rules of Prometheus.
"""

from __future__ import annotations

API_VERSION = 1
HEADER = "Watchkeeper-Api"
