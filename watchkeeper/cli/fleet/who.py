"""`watchkeeper who`: the holders of a GPU or node, or the GPUs of a job, pod, user or team."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

MAX_GPUS = 32


@click.command("who")
@click.argument("name")
@options.with_hub_and_json
def command(hub: Client, name: str, as_json: bool) -> None:
    """Show who holds NAME, or what NAME holds, and its open incidents.

    NAME is a GPU (UUID, start of a UUID, or NODE/INDEX), a node, a pod, a Slurm job, a user or a team:

    \b
    watchkeeper who gpu-r01-02/3
    watchkeeper who gpu-r01-02
    watchkeeper who research/llm-70b-0
    watchkeeper who 4711
    """
    answer = hub.who(name)
    options.print_result(options.answer_fields(answer), [describe(answer)], as_json=as_json)


def describe(answer: answers.Who) -> str:
    blocks = [*map(_gpu_lines, answer.gpus), *map(_node_lines, answer.nodes), *map(_workload_lines, answer.workloads)]
    if answer.left_out:
        blocks.append([f"and {answer.left_out} more workloads"])
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _gpu_lines(gpu: answers.GpuAndHolders) -> list[str]:
    index = "" if gpu.index is None else f"GPU {gpu.index} "
    gone_text = ", gone" if gpu.is_gone else ""
    lines = [f"{index}on {gpu.node} ({gpu.uuid}{', ' + gpu.model if gpu.model else ''}{gone_text})"]
    lines += [f"  held by   {_format_holder(holder)}" for holder in gpu.holders]
    if not gpu.holders:
        lines.append(f"  held by   no one: {gpu.reason.replace('_', ' ')}")
    return lines + _incident_lines(gpu)


def _format_holder(holder: answers.GpuHolder) -> str:
    details = [holder.kind.replace("_", " ")]
    owners = {"container": holder.container, "user": holder.user, "team": holder.team, "project": holder.project}
    details += [f"{name} {owner}" for name, owner in owners.items() if owner]
    if holder.slice is not None:
        details.append(f"slice {holder.slice}")
    if holder.share is not None:
        details.append(f"{holder.share:.0%} of the GPU's work")
    return f"{_full_name(holder)} ({', '.join(details)})"


def _full_name(workload: answers.GpuHolder | answers.WorkloadAndGpus) -> str:
    return "/".join(part for part in (workload.namespace, workload.name) if part)


def _node_lines(answer: answers.NodeAndGpus) -> list[str]:
    node = answer.node
    domains = {"pool": node.pool, "rack": node.rack, "leaf": node.leaf}
    place = ", ".join(f"{name} {domain or 'unmapped'}" for name, domain in domains.items())
    service = "" if node.service is None else node.service.text
    state = ", ".join(filter(None, (node.state.replace("_", " "), service, node.why)))
    lines = [f"{node.name} ({place}): {state}"]
    for report in node.scheduler:
        by = f" (by {report.by})" if report.by else ""
        lines.append(f"  {report.source:9} {report.state}" + (f": {report.reason}{by}" if report.reason else ""))
    for gpu in answer.gpus:
        holders = "; ".join(map(_format_holder, gpu.holders)) or f"no holder: {gpu.reason.replace('_', ' ')}"
        name = gpu.uuid if gpu.index is None else f"GPU {gpu.index}"
        lines.append(f"  {name:8}  {'gone; ' if gpu.is_gone else ''}{holders}")
    reported = {_full_name(holder) for gpu in answer.gpus for holder in gpu.holders}
    lines += [
        f"  runs      {name}, according to the scheduler; no exporter reports its GPUs"
        for name in node.holders
        if name not in reported
    ]
    return lines + list(dict.fromkeys(line for gpu in answer.gpus for line in _incident_lines(gpu)))


def _workload_lines(workload: answers.WorkloadAndGpus) -> list[str]:
    details = [workload.kind.replace("_", " "), workload.state]
    # By default the account and queue of a pod are its namespace, and not worth printing.
    owners = {
        "user": workload.user,
        "account": "" if workload.account == workload.namespace else workload.account,
        "team": workload.team,
        "project": workload.project,
        "queue": "" if workload.queue == workload.namespace else workload.queue,
    }
    details += [f"{name} {owner}" for name, owner in owners.items() if owner]
    lines = [f"{_full_name(workload)} ({', '.join(details)})"]
    if workload.since:
        state = "pending since" if workload.state == "pending" else "running since"
        lines.append(f"  {state} {times.utc(workload.since)}")
    if workload.reason:
        lines.append(f"  reason    {workload.reason}")
    by_node: dict[str, list[str]] = {}
    for gpu in workload.gpus[:MAX_GPUS]:
        by_node.setdefault(gpu.node, []).append("?" if gpu.index is None else str(gpu.index))
    lines += [f"  holds     GPU {', '.join(indexes)} on {node}" for node, indexes in by_node.items()]
    lines += [
        f"  holds     GPUs on {node}; no exporter reports which" for node in workload.nodes if node not in by_node
    ]
    omitted = len(workload.gpus) - MAX_GPUS
    if omitted > 0:
        lines.append(f"  holds     {omitted} more GPUs")
    if not workload.nodes and workload.gpus_asked:
        lines.append(f"  requests  {workload.gpus_asked} GPUs")
    return lines + _incident_lines(workload)


def _incident_lines(place: answers.GpuAndHolders | answers.WorkloadAndGpus) -> list[str]:
    return [f"  incident  {incident.id} {incident.severity}: {incident.title}" for incident in place.incidents]
