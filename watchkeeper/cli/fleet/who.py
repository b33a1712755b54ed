"""`watchkeeper who`: who holds this GPU or node, and what does this job, pod, user or team hold."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

SHOWN_GPUS = 32


@click.command("who")
@click.argument("name")
@options.as_json
@options.with_hub
def command(hub: Client, name: str, as_json: bool) -> None:
    """Say who holds NAME, or what NAME holds, and what is wrong with it.

    NAME is a GPU (its UUID, the beginning of it, or NODE/INDEX), a node, a pod, a Slurm job, a user or a team:

    \b
    watchkeeper who gpu-r01-02/3
    watchkeeper who gpu-r01-02
    watchkeeper who research/llm-70b-0
    watchkeeper who 4711
    """
    answer = hub.who(name)
    if as_json:
        options.print_json(options.fields(answer))
        return
    for line in describe(answer):
        click.echo(line)


def describe(answer: answers.Who) -> list[str]:
    lines: list[str] = []
    for gpu in answer.gpus:
        lines += [*_gpu(gpu), ""]
    for found in answer.nodes:
        lines += [*_node(found), ""]
    for workload in answer.workloads:
        lines += [*_workload(workload), ""]
    if answer.left_out:
        lines.append(f"and {answer.left_out} more workloads")
    return lines[:-1] if lines and not lines[-1] else lines


def _gpu(gpu: answers.GpuAndHolders) -> list[str]:
    index = "" if gpu.index is None else f"GPU {gpu.index} "
    gone = ", gone" if gpu.is_gone else ""
    lines = [f"{index}on {gpu.node} ({gpu.uuid}{', ' + gpu.model if gpu.model else ''}{gone})"]
    lines += [f"  held by   {_holder(holder)}" for holder in gpu.holders]
    if not gpu.holders:
        lines.append(f"  held by   nobody: {gpu.reason.replace('_', ' ')}")
    return lines + _incidents(gpu)


def _holder(holder: answers.GpuHolder) -> str:
    kind = holder.kind.replace("_", " ")
    said = [kind]
    about = {"container": holder.container, "user": holder.user, "team": holder.team, "project": holder.project}
    said += [f"{name} {called}" for name, called in about.items() if called]
    if holder.slice is not None:
        said.append(f"slice {holder.slice}")
    if holder.share is not None:
        said.append(f"{holder.share:.0%} of its work")
    return f"{_called(holder)} ({', '.join(said)})"


def _called(found: answers.GpuHolder | answers.WorkloadAndGpus) -> str:
    return "/".join(part for part in (found.namespace, found.name) if part)


def _node(found: answers.NodeAndGpus) -> list[str]:
    node = found.node
    domains = {"pool": node.pool, "rack": node.rack, "leaf": node.leaf}
    where = ", ".join(f"{name} {called or 'unmapped'}" for name, called in domains.items())
    lines = [f"{node.name} ({where}): {node.state.replace('_', ' ')}" + (f", {node.why}" if node.why else "")]
    for word in node.scheduler:
        by = f" (by {word.by})" if word.by else ""
        lines.append(f"  {word.source} says {word.state}" + (f": {word.reason}{by}" if word.reason else ""))
    for gpu in found.gpus:
        held = "; ".join(_holder(holder) for holder in gpu.holders) or f"nobody: {gpu.reason.replace('_', ' ')}"
        name = gpu.uuid if gpu.index is None else f"GPU {gpu.index}"
        lines.append(f"  {name:8}  {'gone; ' if gpu.is_gone else ''}{held}")
    named = {_called(holder) for gpu in found.gpus for holder in gpu.holders}
    lines += [
        f"  runs      {name}, says the scheduler; no page names its GPUs" for name in node.holders if name not in named
    ]
    seen: dict[str, None] = {}
    for gpu in found.gpus:
        seen |= dict.fromkeys(_incidents(gpu))
    return lines + list(seen)


def _workload(workload: answers.WorkloadAndGpus) -> list[str]:
    about = [workload.kind.replace("_", " "), workload.state]
    # A pod's account and queue are its namespace, unless something says otherwise.
    owners = {
        "user": workload.user,
        "account": "" if workload.account == workload.namespace else workload.account,
        "team": workload.team,
        "project": workload.project,
        "queue": "" if workload.queue == workload.namespace else workload.queue,
    }
    about += [f"{name} {called}" for name, called in owners.items() if called]
    lines = [f"{_called(workload)} ({', '.join(about)})"]
    if workload.since:
        word = "waits since" if workload.state == "pending" else "runs since"
        lines.append(f"  {word} {times.utc(workload.since)}")
    if workload.reason:
        lines.append(f"  because   {workload.reason}")
    by_node: dict[str, list[str]] = {}
    for gpu in workload.gpus[:SHOWN_GPUS]:
        by_node.setdefault(gpu.node, []).append("?" if gpu.index is None else str(gpu.index))
    lines += [f"  holds     GPU {', '.join(indexes)} on {node}" for node, indexes in by_node.items()]
    lines += [
        f"  holds     GPUs on {node} that none of its pages name" for node in workload.nodes if node not in by_node
    ]
    rest = len(workload.gpus) - SHOWN_GPUS
    if rest > 0:
        lines.append(f"  holds     {rest} more GPUs")
    if not workload.nodes and workload.gpus_asked:
        lines.append(f"  asks for  {workload.gpus_asked} GPUs")
    return lines + _incidents(workload)


def _incidents(found: answers.GpuAndHolders | answers.WorkloadAndGpus) -> list[str]:
    return [f"  incident  {one.id} {one.severity}: {one.title}" for one in found.incidents]
