"""Stage 3: PromQL over any engine.

In: an expression and a time. Out: a `QueryResult` with labels, times and values. Two engines implement the
interface: the embedded engine, and the client of a server with the Prometheus HTTP API. Never here: knowledge
about GPUs, alert states, or how results are shown.
"""
