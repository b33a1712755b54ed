"""`watchkeeper silence`: silences and maintenance windows, with who made them and why."""

from __future__ import annotations

import click

from watchkeeper.cli import groups, options, times
from watchkeeper.client.hub import Client


@click.group("silence", cls=groups.FullHelpGroup)
def command() -> None:
    """Keep people from being told, for a time and for a reason.

    What is silenced is still watched, shown and worked on. Where `notify.via` is alertmanager, silences are made and
    ended there, and those listed are its own.
    """


@command.command("add")
@click.argument("matchers", nargs=-1, required=True, metavar="MATCHER...")
@click.option("--for", "duration", metavar="TIME", help="How long, such as 2h.")
@click.option("--from", "starts_at", metavar="TIME", help="RFC 3339; now by default.")
@click.option("--until", "ends_at", metavar="TIME", help="RFC 3339; instead of --for.")
@click.option("--reason", required=True, help="Why; everybody can read it.")
@click.option("--maintenance", is_flag=True, help="A planned window, shown as such.")
@options.with_hub
def add(hub: Client, matchers: tuple[str, ...], reason: str, maintenance: bool, **window: str | None) -> None:
    """Silence what fits all matchers: node=gpu-r01-01, 'team=~"research|vision"', 'severity!=critical'.

    Labels: cluster, node, gpu (UUID), rack, leaf, pool, severity, cause, family, team, namespace, workload, alertname,
    incident.
    """
    if bool(window["duration"]) == bool(window["ends_at"]):
        raise click.UsageError("say how long with --for, or until when with --until")
    made = hub.silence(matchers, reason=reason, maintenance=maintenance, **window)
    click.echo(f"{made.id}: {', '.join(made.matchers)} is silent until {times.utc(made.ends_at)}.")


@command.command("list")
@options.as_json
@options.with_hub
def list_silences(hub: Client, as_json: bool) -> None:
    """Those in force, those to come, and those that ended within a day."""
    answer = hub.list_silences()
    found = answer.silences
    if answer.problem:
        # Not among the rows: what is unknown is neither a silence nor the absence of one.
        click.echo(f"Alertmanager's silences are not all known: {answer.problem}", err=True)
    if as_json:
        options.print_json([one.plain for one in found])
        return
    if not found:
        click.echo("No silence is known." if answer.problem else "No silences.")
        return
    rows = [
        [
            one.id,
            "active" if one.active else "over" if one.ended_by else "not now",
            "maintenance" if one.is_maintenance else "silence",
            one.keeper,
            f"{one.starts_at:%Y-%m-%dT%H:%MZ}",
            f"{one.ends_at:%Y-%m-%dT%H:%MZ}",
            one.author,
            ", ".join(one.matchers),
            one.reason,
        ]
        for one in found
    ]
    options.print_table(["id", "state", "kind", "kept by", "from", "until", "by", "what", "why"], rows)


@command.command("end")
@click.argument("id")
@options.with_hub
def end(hub: Client, id: str) -> None:
    """End a silence before its time."""
    hub.end_silence(id)
    click.echo(f"{id} ended.")
