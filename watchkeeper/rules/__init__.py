"""Stage 4: Prometheus rule files, evaluated.

In: rule files, an Engine and `now`. Out: alerts with their states, and samples to append.
Never here: notifications, incidents, GPU knowledge (that is data in packs/rules).
"""
