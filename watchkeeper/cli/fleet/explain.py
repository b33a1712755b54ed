"""`watchkeeper explain`: explain an Xid code, a metric, or the state of a pod, node or job, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping

import click

from watchkeeper.catalogue import causes, metrics, xid
from watchkeeper.cli import options
from watchkeeper.cli.fleet import explain_workload
from watchkeeper.kit import wire

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


for _workload_command in (explain_workload.pod, explain_workload.node, explain_workload.job):
    command.add_command(_workload_command)


@command.command("xid")
@click.argument("code", type=click.IntRange(min=0))
@options.as_json
def explain_xid(code: int, as_json: bool) -> None:
    """Explain an Xid CODE of NVIDIA's driver, for example 79."""
    row = xid.lookup(code)
    title = f"Xid {row.code}: {row.name}" if row.is_known else row.name
    options.print_result(xid_as_plain(row), [title, *_format_labels(_xid_texts(row))], as_json=as_json)


def xid_as_plain(row: xid.XidRow) -> dict[str, object]:
    """The documented shape of `explain xid --json`; keys are added, never renamed."""
    plain: dict[str, object] = wire.to_plain(row)
    return plain | {"certainty": row.certainty, "next_step": causes.lookup(row.cause).next_step}


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
    """Explain the metric NAME: meaning, unit, typical values, what it cannot show, and what to check next."""
    row = metrics.lookup(name)
    if row is None:
        similar = ", ".join(metrics.similar_names(name))
        raise click.UsageError(f"unknown metric {name!r}." + (f" Similar names: {similar}" if similar else ""))
    texts = {
        "unit": row.unit,
        "type": row.type,
        "newer name": row.newer_name,
        "values": row.bands,
        "cannot show": row.cannot_tell,
        "check next": row.look_next,
        "source": row.source,
    }
    lines = [f"{row.name}: {row.meaning}", *_format_labels(texts)]
    options.print_result(wire.to_plain(row), lines, as_json=as_json)
