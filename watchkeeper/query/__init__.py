"""Stage 3: PromQL over any engine.

Comes in: an expression and a time. Goes out: a `Answer` of labels, times and numbers. Two engines
speak this interface: the embedded one here, and any server with the Prometheus HTTP API. Never here:
knowledge about GPUs, alert states, or how answers are shown.
"""
