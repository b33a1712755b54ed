"""`watchkeeper explain`: what a code, a place or a workload means, in words; knows no hub and needs no GPU.

Each subcommand looks one thing up and prints it, as lines for people or as JSON for programs.
"""

from __future__ import annotations

import json

import click

from watchkeeper.catalogue import causes, metrics, xid
from watchkeeper.cli import groups
from watchkeeper.cli.fleet import explain_workload
from watchkeeper.kit import wire

LABEL_WIDTH = 14
ACTION_WORDS = {
    "check_fabric": "check the NVLink fabric",
    "contact_vendor": "contact NVIDIA or the vendor",
    "drain_then_reset": "drain the node, then reset the GPU",
    "investigate": "investigate",
    "monitor": "watch it; nothing to do now",
    "none": "nothing",
    "reboot_node": "drain and reboot the node",
    "replace_gpu": "have the GPU replaced",
    "reset_gpu": "stop the work on the GPU and reset it",
    "restart_app": "restart the application",
}
DEVICE_PLUGIN_WORDS = {"ignored": "ignores it", "marks_unhealthy": "marks the GPU unhealthy"}


@click.group("explain", cls=groups.FullHelpGroup)
def command() -> None:
    """Say what something means and what to do about it."""


for _live in (explain_workload.pod, explain_workload.node, explain_workload.job):
    command.add_command(_live)


@command.command("xid")
@click.argument("code", type=click.IntRange(min=0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def explain_xid(code: int, as_json: bool) -> None:
    """Explain an Xid CODE of NVIDIA's driver, such as 79."""
    row = xid.lookup(code)
    if as_json:
        click.echo(json.dumps(xid_as_plain(row), indent=2, ensure_ascii=False))
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
        ("do", ACTION_WORDS[row.action]),
        ("drain first", "yes" if row.needs_drain else "no"),
        ("NVIDIA says", ", ".join(part for part in nvidia if part) or "nothing"),
        ("Kubernetes", f"device plugin {DEVICE_PLUGIN_WORDS[row.device_plugin]} by default"),
        ("driver name", row.mnemonic),
        ("note", row.note),
        ("how sure", row.certainty),
        ("source", row.source),
    ]
    return [(label, text) for label, text in lines if text]


@command.command("metric")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def explain_metric(name: str, as_json: bool) -> None:
    """Explain a metric NAME: meaning, unit, bands, what it cannot tell, and what to look at next."""
    row = metrics.lookup(name)
    if row is None:
        close = ", ".join(metrics.similar_names(name))
        raise click.UsageError(f"no metric {name!r} is known." + (f" Close to it: {close}" if close else ""))
    if as_json:
        click.echo(json.dumps(wire.to_plain(row), indent=2, ensure_ascii=False))
        return
    click.echo(f"{row.name}: {row.meaning}")
    for label, text in _metric_lines(row):
        click.echo(f"  {label:<{LABEL_WIDTH}}{text}")


def _metric_lines(row: metrics.MetricRow) -> list[tuple[str, str]]:
    lines = [
        ("unit", row.unit),
        ("type", row.type),
        ("newer name", row.newer_name),
        ("bands", row.bands),
        ("cannot tell", row.cannot_tell),
        ("look next at", row.look_next),
        ("source", row.source),
    ]
    return [(label, text) for label, text in lines if text]
