"""`watchkeeper explain`: explain an Xid code, a metric, or the state of a pod, node or job, as text or JSON."""

from __future__ import annotations

import click

from watchkeeper.catalogue import causes, metrics, xid
from watchkeeper.cli import groups, options
from watchkeeper.cli.fleet import explain_workload
from watchkeeper.kit import wire

LABEL_WIDTH = 14
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


@click.group("explain", cls=groups.FullHelpGroup)
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
    if as_json:
        options.print_json(xid_as_plain(row))
        return
    click.echo(f"Xid {row.code}: {row.name}" if row.is_known else row.name)
    for label, text in _xid_lines(row):
        click.echo(f"  {label:<{LABEL_WIDTH}}{text}")


def xid_as_plain(row: xid.XidRow) -> dict[str, object]:
    """The documented shape of `explain xid --json`; keys are added, never renamed."""
    plain: dict[str, object] = wire.to_plain(row)
    return plain | {"certainty": row.certainty, "next_step": causes.lookup(row.cause).next_step}


def _xid_lines(row: xid.XidRow) -> list[tuple[str, str]]:
    nvidia = [row.nvidia_immediate and f"now {row.nvidia_immediate}"]
    nvidia.append(row.nvidia_investigatory and f"then {row.nvidia_investigatory}")
    lines = [
        ("severity", row.severity.value),
        ("scope", row.scope),
        ("likely cause", row.likely_cause),
        ("cause id", row.cause),
        ("action", ACTION_TEXTS[row.action]),
        ("drain first", "yes" if row.needs_drain else "no"),
        ("NVIDIA says", ", ".join(part for part in nvidia if part) or "nothing"),
        ("Kubernetes", f"device plugin {DEVICE_PLUGIN_TEXTS[row.device_plugin]} by default"),
        ("driver name", row.mnemonic),
        ("note", row.note),
        ("confidence", row.certainty),
        ("source", row.source),
    ]
    return [(label, text) for label, text in lines if text]


@command.command("metric")
@click.argument("name")
@options.as_json
def explain_metric(name: str, as_json: bool) -> None:
    """Explain the metric NAME: meaning, unit, typical values, what it cannot show, and what to check next."""
    row = metrics.lookup(name)
    if row is None:
        similar = ", ".join(metrics.similar_names(name))
        raise click.UsageError(f"unknown metric {name!r}." + (f" Similar names: {similar}" if similar else ""))
    if as_json:
        options.print_json(wire.to_plain(row))
        return
    click.echo(f"{row.name}: {row.meaning}")
    for label, text in _metric_lines(row):
        click.echo(f"  {label:<{LABEL_WIDTH}}{text}")


def _metric_lines(row: metrics.MetricRow) -> list[tuple[str, str]]:
    lines = [
        ("unit", row.unit),
        ("type", row.type),
        ("newer name", row.newer_name),
        ("values", row.bands),
        ("cannot show", row.cannot_tell),
        ("check next", row.look_next),
        ("source", row.source),
    ]
    return [(label, text) for label, text in lines if text]
