"""The HTTP interface of the hub: Prometheus API, fleet API, live updates, and the built console.

In: HTTP requests. Out: responses from the hub. Never here: decisions about the fleet.
"""
