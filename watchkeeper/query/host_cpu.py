"""How busy the CPUs of nodes are, as PromQL: what node_exporter tells, and our agent where there is none.

`workloads.questions` compares the nodes of a job by it, `diagnose.surroundings` those of a rank that is late.
"""

from __future__ import annotations


def busy_share(where: str) -> str:
    """By `instance`, of the series of node_exporter that these matchers choose."""
    idle = f'node_cpu_seconds_total{{{where},mode="idle"}}'
    # For a minute at least, when a rank is called slow; where scrapes are rarer, five minutes stand in.
    return f"1 - avg by (instance) (rate({idle}[1m]) or rate({idle}[5m]))"


def load_share(where: str, *, minutes: int) -> str:
    """What programs want of a node's CPUs, all of them at most; by `Hostname`, and by `instance` as node_exporter's."""
    load = f'max by (Hostname) (watchkeeper_host_load{{{where},minutes="{minutes}"}})'
    return (
        f'label_replace(clamp_max({load} / on (Hostname) {cpu_count(where)}, 1), "instance", "$1", "Hostname", "(.+)")'
    )


def cpu_count(where: str) -> str:
    return f"max by (Hostname) (watchkeeper_host_cpus{{{where}}})"
