"""Stage 4: read and evaluate Prometheus rule files.

In: rule files, an Engine and `now`. Out: alerts with their states, and samples to append.
Never here: notifications, incidents, GPU knowledge (that is data in packs/rules).
"""
