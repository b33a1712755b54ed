"""What somebody already has, read to say what of it works here.

Comes in: counters files of dcgm-exporter, Prometheus rule files, Grafana dashboards. Goes out: a verdict for each line,
rule and panel query, with the reason. Never here: a network call, or a change to what was read.
"""
