"""`watchkeeper diag fabric`: how fast GPUs reach each other inside a node and between nodes, and which link is slow."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace

import click

from watchkeeper.agent.gpus import scan_readings
from watchkeeper.cli.options import as_json, print_json
from watchkeeper.kit import clock, logs, wire
from watchkeeper.probe.diag import runner
from watchkeeper.probe.fabric import launcher, pairwise
from watchkeeper.readers.clusters import hostlist
from watchkeeper.readers.nvml import choice

PORT = 29_400
CPU_RANKS = 4
EXIT_CANNOT_TELL = 3


@click.command("fabric")
@as_json
@click.option("--nodes", type=click.IntRange(1, 4096), help="How many nodes take part.  [default: Slurm's, else 1]")
@click.option(
    "--node-rank", type=click.IntRange(0, 4095), help="Which of them this is, from 0.  [default: Slurm's, else 0]"
)
@click.option("--master", metavar="HOST[:PORT]", help="Where they meet: node 0.  [default: Slurm's first node]")
@click.option(
    "--backend", type=click.Choice(["nccl", "gloo"]), default="nccl", show_default=True, help="gloo: no GPUs."
)
@click.option("--ranks", type=click.IntRange(2, 64), help="Ranks on this node.  [default: its GPUs; 4 with gloo]")
@click.option(
    "--expected", type=click.FloatRange(0, min_open=True), help="GB/s bus bandwidth that all-reduce must reach."
)
@click.option("--busy-ok", is_flag=True, help="Use GPUs too that somebody is using.")
@click.option(
    "--python", metavar="PATH", default=sys.executable, show_default=False, help="The interpreter with torch."
)
def command(
    as_json: bool,
    nodes: int | None,
    node_rank: int | None,
    master: str | None,
    backend: str,
    ranks: int | None,
    expected: float | None,
    busy_ok: bool,
    python: str,
) -> None:
    """All-reduce over all GPUs, then every pair in turn.

    One node: `watchkeeper diag fabric`. Several: the same command on each, best by `srun --ntasks-per-node=1`, which
    tells it everything; elsewhere with --nodes, --node-rank and --master. Node 0 has the verdict. Exit codes: 0 no slow
    link, 1 a slow link, a wrong sum or a rank that failed, 2 wrong use, 3 cannot tell.
    """
    logs.configure(level="critical")
    count, rank, host, port = meeting(os.environ, nodes=nodes, node_rank=node_rank, master=master)
    gpus = (
        _gpus(ranks, is_busy_ok=busy_ok)
        if backend == "nccl"
        else tuple(f"cpu{number}" for number in range(ranks or CPU_RANKS))
    )
    if count * len(gpus) < 2:
        click.echo(f"{len(gpus)} GPU here and {count} node: two ranks are needed to try a link.", err=True)
        sys.exit(EXIT_CANNOT_TELL)
    place = launcher.FabricPlan(gpus, backend, os.uname().nodename, nodes=count, node_rank=rank, host=host, port=port)
    plan = replace(place, expected=expected, python=python)
    report = launcher.run(plan, _say if sys.stderr.isatty() else lambda _: None)
    if as_json:
        print_json(as_plain(report))
    else:
        _print(report)
    sys.exit(report.exit_code)


def meeting(
    environment: Mapping[str, str], *, nodes: int | None, node_rank: int | None, master: str | None
) -> tuple[int, int, str, int]:
    """How many nodes, which one this is, and where they meet: as told, else as Slurm says, else this node alone."""
    is_slurm = "SLURM_NODEID" in environment and nodes is None
    # A step may have fewer nodes than its job.
    ours = "SLURM_STEP" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB"
    count = int(environment.get(f"{ours}_NUM_NODES", "1")) if is_slurm else nodes or 1
    rank = node_rank if node_rank is not None else int(environment["SLURM_NODEID"]) if is_slurm else 0
    if rank >= count:
        raise click.UsageError(f"--node-rank {rank}: there are {count} nodes, so the last is {count - 1}")
    if count == 1:
        return 1, 0, "127.0.0.1", 0
    if master is None:
        names = hostlist.expand(environment.get(f"{ours}_NODELIST", "")) if is_slurm else []
        if not names:
            raise click.UsageError("--nodes above 1 needs --master, the address of node 0")
        master = names[0]
    host, _, port = master.partition(":")
    if port and not port.isdigit():
        raise click.UsageError(f"--master {master[:60]}: {port[:20]} is no port")
    return count, rank, host, int(port or PORT)


def _gpus(ranks: int | None, *, is_busy_ok: bool) -> tuple[str, ...]:
    with scan_readings.running_sampler(
        scan_readings.ReadingOptions(choice.choose_families()), clock.ScaledClock()
    ) as sampler:
        found = sampler.snapshot().gpus
    used = [gpu.index for gpu in found if float(gpu.values.get("DCGM_FI_DEV_FB_USED", 0.0)) > runner.MAX_IDLE_MIB]  # type: ignore[arg-type]
    if used and not is_busy_ok:
        click.echo(f"GPUs {', '.join(map(str, used))} are in use. --busy-ok uses them all the same.", err=True)
        sys.exit(EXIT_CANNOT_TELL)
    return tuple(gpu.identity["uuid"] for gpu in found)[:ranks]


def _say(test: str) -> None:
    click.echo(f"{test}…", err=True)


def as_plain(report: pairwise.FabricReport) -> dict[str, object]:
    """The documented shape of `diag fabric --json`; keys are added, never renamed."""
    return {
        "ranks": [{"node": rank.node, "gpu": rank.gpu} for rank in report.ranks],
        "allreduce": [
            {"bytes": one.size_bytes, "seconds": one.seconds, "bus_gb_per_second": one.bus_gb_per_second}
            for one in report.reductions
        ],
        "pairs": wire.to_plain(report.pairs),
        "results": wire.to_plain(report.results),
    }


def _print(report: pairwise.FabricReport) -> None:
    for one in report.reductions:
        size, took = one.size_bytes / 2**20, one.seconds * 1e3
        click.echo(f"all-reduce  {size:6.0f} MiB  {took:9.3f} ms  {one.bus_gb_per_second:8.2f} GB/s bus bandwidth")
    for result in report.results:
        click.echo(f"  {result.verdict:<5} {result.test:<14} {result.why}")
