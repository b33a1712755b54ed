"""`watchkeeper silence`: add, list and end silences and maintenance windows."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client


@click.group("silence", cls=options.FullHelpGroup)
def command() -> None:
    """Silence notifications for some time, with a reason.

    Silenced incidents still open, are shown and are repaired. If `notify.via` is alertmanager, silences are created,
    listed and ended in Alertmanager.
    """


@command.command("add")
@click.argument("matchers", nargs=-1, required=True, metavar="MATCHER...")
@click.option("--for", "duration", metavar="TIME", help="Length of the silence, for example 2h.")
@click.option("--from", "starts_at", metavar="TIME", help="Start of the silence, RFC 3339.  [default: now]")
@click.option("--until", "ends_at", metavar="TIME", help="End of the silence, RFC 3339; instead of --for.")
@click.option("--reason", required=True, help="Reason, visible to all users.")
@click.option("--maintenance", is_flag=True, help="Mark the silence as a maintenance window.")
@options.with_hub
def add(hub: Client, matchers: tuple[str, ...], reason: str, maintenance: bool, **window: str | None) -> None:
    """Silence notifications that match every MATCHER: node=gpu-r01-01, 'team=~"research|vision"', 'severity!=critical'.

    Labels: cluster, node, gpu (UUID), rack, leaf, pool, severity, cause, family, team, namespace, workload, alertname,
    incident.
    """
    if bool(window["duration"]) == bool(window["ends_at"]):
        raise click.UsageError("give either --for or --until")
    silence = hub.silence(matchers, reason=reason, maintenance=maintenance, **window)
    click.echo(f"{silence.id}: {', '.join(silence.matchers)} silenced until {times.utc(silence.ends_at)}.")


@command.command("list")
@options.with_hub_and_json
def list_silences(hub: Client, as_json: bool) -> None:
    """List silences that are active, planned, or ended less than a day ago."""
    answer = hub.list_silences()
    silences = answer.silences
    if answer.problem:
        # Not a row of the table: an unknown silence is neither active nor absent.
        click.echo(f"Some silences of Alertmanager are unknown: {answer.problem}", err=True)
    header = ["id", "state", "kind", "stored in", "from", "until", "author", "matchers", "reason"]
    rows = [_format_row(silence) for silence in silences]
    empty = "No known silences." if answer.problem else "No silences."
    options.print_rows([silence.plain for silence in silences], header, rows, as_json=as_json, empty=empty)


def _format_row(silence: answers.ListedSilence) -> list[str]:
    state = "active" if silence.active else "ended" if silence.ended_by else "not active"
    kind = "maintenance" if silence.is_maintenance else "silence"
    since, until = (f"{at:%Y-%m-%dT%H:%MZ}" for at in (silence.starts_at, silence.ends_at))
    matchers = ", ".join(silence.matchers)
    return [silence.id, state, kind, silence.keeper, since, until, silence.author, matchers, silence.reason]


@command.command("end")
@click.argument("id")
@options.with_hub
def end(hub: Client, id: str) -> None:
    """End a silence now."""
    hub.end_silence(id)
    click.echo(f"{id} ended.")
