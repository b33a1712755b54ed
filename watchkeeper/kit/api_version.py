"""The number of the hub's own HTTP API, said in each answer: `web` writes it, `client` reads it.

Within a number things are only added. What would break a client gets the next number, and both are served for one
release. Prometheus' API under /api/v1 has Prometheus' own number and rules.
"""

from __future__ import annotations

API_VERSION = 1
HEADER = "Watchkeeper-Api"
