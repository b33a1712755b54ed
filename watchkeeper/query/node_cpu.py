"""PromQL for the CPU load of nodes, from node_exporter or from the agent.

`workloads.job_queries` compares the nodes of a job with it, `diagnose.place_context` the node of a straggler.
"""

from __future__ import annotations


def cpu_busy_query(matchers: str) -> str:
    """PromQL for the busy share of the CPUs by `instance`, from node_exporter."""
    idle = f'node_cpu_seconds_total{{{matchers},mode="idle"}}'
    # One minute, because a straggler is detected after a minute; five minutes if scrapes are less frequent.
    return f"1 - avg by (instance) (rate({idle}[1m]) or rate({idle}[5m]))"


def cpu_load_query(matchers: str, *, minutes: int) -> str:
    """PromQL for the load of a node per CPU, at most 1, by `Hostname` and `instance`."""
    load = f'max by (Hostname) (watchkeeper_host_load{{{matchers},minutes="{minutes}"}})'
    load_per_cpu = f"{load} / on (Hostname) {cpu_count_query(matchers)}"
    return f'label_replace(clamp_max({load_per_cpu}, 1), "instance", "$1", "Hostname", "(.+)")'


def cpu_count_query(matchers: str) -> str:
    return f"max by (Hostname) (watchkeeper_host_cpus{{{matchers}}})"
