"""Stage 4: Prometheus rule files, evaluated.

Comes in: rule files, an Engine and `now`. Goes out: alerts in their states, and samples to append.
Never here: notifications, incidents, GPU knowledge (that is data in packs/rules).
"""
