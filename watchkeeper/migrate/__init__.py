"""Checks which parts of an existing monitoring setup work here.

In: counters files of dcgm-exporter, Prometheus rule files, Grafana dashboards. Out: a verdict for each line,
rule and panel query, with the reason. Never here: a network call, or a change to the input files.
"""
