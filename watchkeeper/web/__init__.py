"""The hub's face: Prometheus API, fleet API, live updates, and the built console.

Comes in: HTTP requests. Goes out: answers from the hub. Never here: decisions about the fleet.
"""
