"""`watchkeeper diag fabric`: measure the bandwidth between GPUs in a node and between nodes, and find slow links."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from watchkeeper.agent.gpus import scan_readings
from watchkeeper.cli import options
from watchkeeper.kit import clock, logs, wire
from watchkeeper.probe.diag import runner
from watchkeeper.probe.fabric import launcher, pairwise
from watchkeeper.readers.clusters import hostlist
from watchkeeper.readers.nvml import choice

PORT = 29_400
CPU_RANKS = 4


@click.command("fabric")
@options.as_json
@click.option("--nodes", type=click.IntRange(1, 4096), help="Number of nodes in the test.  [default: Slurm's, else 1]")
@click.option("--node-rank", type=click.IntRange(0, 4095), help="Rank of this node.  [default: Slurm's, else 0]")
@click.option("--master", metavar="HOST[:PORT]", help="Address of node 0.  [default: Slurm's first node]")
@click.option("--backend", type=click.Choice(["nccl", "gloo"]), default="nccl", help="Backend; gloo uses no GPUs.")
@click.option("--ranks", type=click.IntRange(2, 64), help="Ranks on this node.  [default: its GPUs; 4 with gloo]")
@options.expected_bandwidth
@options.busy_ok
@options.python
def command(
    as_json: bool, backend: str, ranks: int | None, expected: float | None, is_busy_ok: bool, python: str, **nodes: Any
) -> None:
    """Measure all-reduce over all GPUs, then the bandwidth of every pair.

    For several nodes, run the same command on each: with `srun --ntasks-per-node=1`, which sets all options, or with
    --nodes, --node-rank and --master. Node 0 prints the result. Exit codes: 0 no slow link, 1 a slow link, a wrong sum
    or a failed rank, 2 usage error, 3 unknown.
    """
    logs.configure(level="critical")
    count, rank, host, port = find_rendezvous(os.environ, **nodes)
    gpus = tuple(f"cpu{number}" for number in range(ranks or CPU_RANKS))
    if backend == "nccl":
        gpus = _select_gpus(ranks, is_busy_ok=is_busy_ok)
    if count * len(gpus) < 2:
        click.echo(f"A link test needs at least 2 ranks; {count} node with {len(gpus)} GPU has fewer.", err=True)
        sys.exit(options.EXIT_UNKNOWN)
    plan = launcher.FabricPlan(gpus, backend, os.uname().nodename, nodes=count, node_rank=rank, host=host, port=port)
    plan = replace(plan, expected=expected, python=python)
    report = launcher.run(plan, lambda test: click.echo(f"{test}…", err=True) if sys.stderr.isatty() else None)
    options.print_result(as_plain(report), _describe(report), as_json=as_json)
    sys.exit(report.exit_code)


def find_rendezvous(
    environment: Mapping[str, str], *, nodes: int | None, node_rank: int | None, master: str | None
) -> tuple[int, int, str, int]:
    """Number of nodes, rank of this node, and host and port of node 0: from options, else Slurm, else one node."""
    is_slurm = "SLURM_NODEID" in environment and nodes is None
    # A step may have fewer nodes than its job.
    prefix = "SLURM_STEP" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB"
    count = int(environment.get(f"{prefix}_NUM_NODES", "1")) if is_slurm else nodes or 1
    rank = node_rank if node_rank is not None else int(environment["SLURM_NODEID"]) if is_slurm else 0
    if rank >= count:
        raise click.UsageError(f"--node-rank {rank}: the last of {count} nodes is {count - 1}")
    if count == 1:
        return 1, 0, "127.0.0.1", 0
    if master is None:
        names = hostlist.expand(environment.get(f"{prefix}_NODELIST", "")) if is_slurm else []
        if not names:
            raise click.UsageError("--nodes above 1 needs --master, the address of node 0")
        master = names[0]
    host, _, port = master.partition(":")
    if port and not port.isdigit():
        raise click.UsageError(f"--master {master[:60]}: {port[:20]} is not a port")
    return count, rank, host, int(port or PORT)


def _select_gpus(ranks: int | None, *, is_busy_ok: bool) -> tuple[str, ...]:
    reading = scan_readings.ReadingOptions(choice.choose_families())
    with scan_readings.running_sampler(reading, clock.ScaledClock()) as sampler:
        gpus = sampler.snapshot().gpus
    busy = [gpu.index for gpu in gpus if float(gpu.values.get("DCGM_FI_DEV_FB_USED", 0.0)) > runner.MAX_IDLE_MIB]  # type: ignore[arg-type]
    if busy and not is_busy_ok:
        click.echo(f"GPUs {', '.join(map(str, busy))} are in use. To test them anyway, use --busy-ok.", err=True)
        sys.exit(options.EXIT_UNKNOWN)
    return tuple(gpu.identity["uuid"] for gpu in gpus)[:ranks]


def as_plain(report: pairwise.FabricReport) -> dict[str, object]:
    """The documented shape of `diag fabric --json`; keys are added, never renamed."""
    return {
        "ranks": [{"node": rank.node, "gpu": rank.gpu} for rank in report.ranks],
        "allreduce": [
            {"bytes": row.size_bytes, "seconds": row.seconds, "bus_gb_per_second": row.bus_gb_per_second}
            for row in report.reductions
        ],
        "pairs": wire.to_plain(report.pairs),
        "results": wire.to_plain(report.results),
    }


def _describe(report: pairwise.FabricReport) -> Iterator[str]:
    for reduction in report.reductions:
        size, milliseconds = f"{reduction.size_bytes / 2**20:6.0f} MiB", f"{reduction.seconds * 1e3:9.3f} ms"
        yield f"all-reduce  {size}  {milliseconds}  {reduction.bus_gb_per_second:8.2f} GB/s bus bandwidth"
    for result in report.results:
        yield f"  {result.verdict:<5} {result.test:<14} {result.why}"
