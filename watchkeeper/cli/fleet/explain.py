"""`watchkeeper explain`: explain an Xid code, a metric, or the state of a pod, node or job, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import click

from watchkeeper.catalogue import causes, metrics, xid
from watchkeeper.cli import options
from watchkeeper.cli.fleet import jobs
from watchkeeper.client.hub import Client
from watchkeeper.diagnose import explain_result, pod
from watchkeeper.errors import HubError
from watchkeeper.kit import wire

MAX_PASTED_BYTES = 64 * 1024 * 1024
ACTION_TEXTS = {
    "check_fabric": "check the NVLink fabric",
    "contact_vendor": "contact NVIDIA or the vendor",
    "drain_then_reset": "drain the node, then reset the GPU",
    "investigate": "investigate",
    "monitor": "monitor it; no action now",
    "none": "no action",
    "reboot_node": "drain and reboot the node",
    "replace_gpu": "replace the GPU",
    "reset_gpu": "stop the workloads on the GPU and reset it",
    "restart_app": "restart the application",
}
DEVICE_PLUGIN_TEXTS = {"ignored": "ignores it", "marks_unhealthy": "marks the GPU unhealthy"}


@click.group("explain", cls=options.FullHelpGroup)
def command() -> None:
    """Explain an Xid code or a metric, or the state of a pod, node or job, and what to do."""


@command.command("pod")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option(
    "--file",
    "file",
    type=click.File("r", encoding="utf-8", errors="replace"),
    help="Read output of kubectl from this file instead of a hub; `-` is standard input.",
)
@options.with_hub_and_json
def explain_pod(hub: Client, name: str, file: TextIO | None, as_json: bool) -> None:
    """Explain why a pod is pending, does not start, or has no GPU: the reason of each node, and the smallest fix.

    \b
    watchkeeper explain pod ml/train-0
    kubectl get pod,node -A -o json | watchkeeper explain pod ml/train-0 --file -

    Exit code 1 if the pod has a problem.
    """
    if file is None:
        answer = hub.explain("pod", name)
        _print_explanation(answer.explained.plain, [answer.text], as_json=as_json)
        return
    namespace, pod_name = name.split("/", 1) if "/" in name else ("default", name)
    explanation = pod.explain_pasted(file.read(MAX_PASTED_BYTES), namespace, pod_name)
    if explanation is None:
        problem = f"the text has no pod {namespace}/{pod_name} and no scheduler message"
        raise click.UsageError(f"{problem}. Paste `kubectl get pod,node -A -o json` or `kubectl describe pod`")
    _print_explanation(wire.to_plain(explanation), explain_result.as_text(explanation), as_json=as_json)


@command.command("node")
@click.argument("name")
@options.with_hub_and_json
def explain_node(hub: Client, name: str, as_json: bool) -> None:
    """Explain the state of a node: scheduler states, GPUs, holders, incidents and recent changes."""
    answer = hub.explain("node", name)
    _print_explanation(answer.explained.plain, [answer.text], as_json=as_json)


@command.command("job")
@click.argument("name", metavar="[NAMESPACE/]NAME|ID")
@options.with_hub_and_json
def explain_job(hub: Client, name: str, as_json: bool) -> None:
    """Explain the state of a job: missing, slow or starved ranks, hardware events, and what to do.

    Also prints the report of `watchkeeper jobs`: use of its GPUs, goodput and ranks.
    """
    answer = hub.explain("job", name)
    try:
        report = hub.job(name)
    except HubError as error:
        # A pending job, or one that only the scheduler of another hub lists, has no report.
        if error.status != 404:
            raise
        report = None
    explanation = {**answer.explained.plain, "report": None if report is None else jobs.as_plain(report)}
    # The first three lines repeat the verdict, the state and the reason.
    lines = [] if report is None else jobs.report_lines(report, max_ranks=8)[3:]
    _print_explanation(explanation, [answer.text, *lines], as_json=as_json)


def _print_explanation(explanation: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    options.print_result(explanation, lines, as_json=as_json)
    if explanation["cause"]:
        click.get_current_context().exit(1)


@command.command("xid")
@click.argument("code", type=click.IntRange(min=0))
@options.as_json
def explain_xid(code: int, as_json: bool) -> None:
    """Explain an Xid CODE of NVIDIA's driver, for example 79."""
    row = xid.lookup(code)
    title = f"Xid {row.code}: {row.name}" if row.is_known else row.name
    # The documented shape: keys are added, never renamed.
    plain = {**wire.to_plain(row), "certainty": row.certainty, "next_step": causes.lookup(row.cause).next_step}
    options.print_result(plain, [title, *_format_labels(_xid_texts(row))], as_json=as_json)


def _format_labels(texts: Mapping[str, str]) -> list[str]:
    return [f"  {label:<14}{text}" for label, text in texts.items() if text]


def _xid_texts(row: xid.XidRow) -> dict[str, str]:
    nvidia = [row.nvidia_immediate and f"now {row.nvidia_immediate}"]
    nvidia.append(row.nvidia_investigatory and f"then {row.nvidia_investigatory}")
    return {
        "severity": row.severity.value,
        "scope": row.scope,
        "likely cause": row.likely_cause,
        "cause id": row.cause,
        "action": ACTION_TEXTS[row.action],
        "drain first": "yes" if row.needs_drain else "no",
        "NVIDIA says": ", ".join(part for part in nvidia if part) or "nothing",
        "Kubernetes": f"device plugin {DEVICE_PLUGIN_TEXTS[row.device_plugin]} by default",
        "driver name": row.mnemonic,
        "note": row.note,
        "confidence": row.certainty,
        "source": row.source,
    }


@command.command("metric")
@click.argument("name")
@options.as_json
def explain_metric(name: str, as_json: bool) -> None:
    """Explain a metric by its NAME or DCGM field id: meaning, unit, typical values, limits, and what to check next."""
    row = metrics.lookup_any(name)
    if row is None:
        similar = ", ".join(metrics.similar_names(name))
        number = f" DCGM {metrics.DCGM_VERSION} has no public field of this number." if name.isdigit() else ""
        raise click.UsageError(f"unknown metric {name!r}.{number}" + (f" Similar names: {similar}" if similar else ""))
    texts = {
        "unit": row.unit,
        "type": row.type,
        "newer name": row.newer_name,
        "field id": row.field_id,
        "values": row.bands,
        "cannot show": row.cannot_tell,
        "check next": row.look_next,
        "source": row.source,
    }
    lines = [f"{row.name}: {row.meaning}", *_format_labels(texts)]
    options.print_result(wire.to_plain(row), lines, as_json=as_json)
