"""`watchkeeper incidents`: what is wrong now, why, and what to do."""

from __future__ import annotations

import click

from watchkeeper.cli import groups, options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire

NO_COST = "costs what it holds, which is unknown: nobody says on which GPUs it runs"


class IncidentsGroup(groups.FullHelpGroup):
    """`incidents INC-1` is `incidents show INC-1`: the first that people type after reading the list."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_one = bool(args) and options.INCIDENT.FORM.fullmatch(args[0]) is not None
        return super().resolve_command(ctx, ["show", *args] if is_one else args)


@click.group("incidents", cls=IncidentsGroup, invoke_without_command=True)
@click.option("--all", "show_all", is_flag=True, help="Resolved ones too.")
@options.as_json
@options.with_hub
@click.pass_context
def command(ctx: click.Context, hub: Client, show_all: bool, as_json: bool) -> None:
    """List open incidents, show one (`incidents INC-1`), or work on it.

    Exits with 0 when none is open and 1 when one is, so that scripts can ask.
    """
    if ctx.invoked_subcommand is not None:
        return
    incidents = hub.incidents(all=show_all)
    # Whoever finds nothing wrong must know that the hub may not see it.
    for one in hub.status().degraded:
        click.echo(f"degraded: {one}", err=True)
    if as_json:
        options.print_json([one.plain for one in incidents])
    elif incidents:
        rows = [[i.id, i.severity, _state(i), times.utc(i.opened_at), i.cause, i.title] for i in incidents]
        options.print_table(["id", "severity", "state", "opened", "cause", "what"], rows)
    else:
        click.echo("No open incidents.")
    if any(incident.state != "resolved" for incident in incidents):
        ctx.exit(1)


@command.command("show")
@click.argument("id", type=options.INCIDENT)
@options.as_json
@options.with_hub
def show(hub: Client, id: str, as_json: bool) -> None:
    """One incident: cause, evidence, what was ruled out, and the plan."""
    answer = hub.incident(id)
    if as_json:
        options.print_json(answer.plain)
        return
    for line in describe(answer):
        click.echo(line)


@command.command("ack")
@click.argument("id", type=options.INCIDENT)
@options.with_hub
def acknowledge(hub: Client, id: str) -> None:
    """Say that somebody is on it."""
    hub.acknowledge(id)
    click.echo(f"{id} acknowledged.")


@command.command("resolve")
@click.argument("id", type=options.INCIDENT)
@click.option("--why", required=True, help="What ended it; kept in the journal.")
@click.option("--cause", help="What it was, where the hub had it wrong.")
@options.with_hub
def resolve(hub: Client, id: str, why: str, cause: str | None) -> None:
    """Close an incident by hand."""
    if cause is not None:
        hub.correct(id, cause, why=why)
    hub.resolve(id, why=why)
    click.echo(f"{id} resolved.")


@command.command("cause")
@click.argument("id", type=options.INCIDENT)
@click.argument("cause")
@click.option("--why", default="", help="How you know; shown at incidents that look the same.")
@options.with_hub
def cause(hub: Client, id: str, cause: str, why: str) -> None:
    """Say what an incident was; the cause that it has already says that it is right."""
    said = hub.correct(id, cause, why=why).correction
    click.echo(f"{id}: {said.cause} is right." if said.was == cause else f"{id}: {cause}, not {said.was}.")


@command.command("assign")
@click.argument("id", type=options.INCIDENT)
@click.argument("person")
@options.with_hub
def assign(hub: Client, id: str, person: str) -> None:
    """Give an incident to somebody; it then counts as acknowledged."""
    hub.assign(id, to=person)
    click.echo(f"{id} is with {person}.")


@command.command("silence")
@click.argument("id", type=options.INCIDENT)
@click.option("--for", "lasting", required=True, metavar="TIME", help="How long, such as 2h.")
@click.option("--reason", required=True, help="Why nobody is to be told; everybody can read it.")
@options.with_hub
def silence(hub: Client, id: str, lasting: str, reason: str) -> None:
    """Tell nobody about anything at this incident's place for some time."""
    made = hub.silence_incident(id, duration=lasting, reason=reason)
    click.echo(f"{made.id}: {', '.join(made.matchers)} is silent until {times.utc(made.ends_at)}.")


@command.command("notices")
@click.argument("id", type=options.INCIDENT)
@options.as_json
@options.with_hub
def notices(hub: Client, id: str, as_json: bool) -> None:
    """Who was told about an incident, when, and what they answered."""
    found = hub.notices(id)
    if as_json:
        options.print_json(wire.to_plain(found))
    elif found:
        rows = [
            [
                n.receiver,
                n.occasion,
                n.state,
                str(n.tries),
                times.utc(n.sent_at or n.due_at),
                n.answer,
            ]
            for n in found
        ]
        options.print_table(["receiver", "occasion", "state", "tries", "sent or due", "answer"], rows)
    else:
        click.echo("Nobody was told. `notify.via` says who would be.")


@command.command("report")
@click.argument("id", type=options.INCIDENT)
@options.as_json
@options.with_hub
def report(hub: Client, id: str, as_json: bool) -> None:
    """The whole story of an incident as one Markdown document, or JSON."""
    if as_json:
        options.print_json(hub.report(id))
    else:
        click.echo(hub.report_text(id), nl=False)


@command.command("digest")
@click.option("--days", type=click.IntRange(1, 366), default=7, show_default=True, help="How far back.")
@options.as_json
@options.with_hub
def digest(hub: Client, days: int, as_json: bool) -> None:
    """Incidents by cause with times to detect, diagnose and repair; noisy rules; who breaks again."""
    answer = hub.digest(days=days)
    if as_json:
        options.print_json(answer.plain["digest"])
    else:
        click.echo(answer.text)


@command.command("note")
@click.argument("id", type=options.INCIDENT)
@click.argument("text")
@options.with_hub
def note(hub: Client, id: str, text: str) -> None:
    """Write a note into an incident's timeline."""
    hub.note(id, text=text)
    click.echo(f"Noted on {id}.")


def _state(incident: answers.IncidentCard) -> str:
    if incident.part_of:
        return f"part of {incident.part_of}"
    return f"{incident.state}, silenced" if incident.silenced_by else incident.state


def _times(incident: answers.NamedIncident) -> str:
    ended = f", resolved {times.utc(incident.resolved_at)}" if incident.resolved_at else ""
    return f"opened {times.utc(incident.opened_at)}{ended}"


def describe(answer: answers.FullIncidentDetail) -> list[str]:
    """The incident as lines of text, the answer first."""
    incident, diagnosis, plan = answer.incident, answer.diagnosis, answer.plan
    lines = [
        f"{incident.id}  {incident.title}",
        f"{incident.severity}, {incident.state}; {_times(incident)}",
    ]
    if incident.workloads:
        lines.append(f"hits {', '.join(incident.workloads)}")
    if blast := answer.blast:
        lost, price = f"{blast.gpu_hours:g} GPU-hours", f"{blast.dollars_per_hour:g} dollars an hour"
        # A model or a job of which nobody tells where it runs: no GPU is not what it has.
        is_known = blast.gpus or blast.hits or incident.place.node
        lines.append(f"costs {blast.gpus} GPUs, {lost} so far, {price}" if is_known else NO_COST)
        if blast.teams:
            lines.append(f"teams {', '.join(blast.teams)}")
    if silence := answer.silenced_by:
        lines.append(f"silenced by {silence.author} until {times.utc(silence.ends_at)}: {silence.reason}")
    if incident.part_of:
        lines.append(f"goes on as a part of {incident.part_of}")
    looked_at = () if diagnosis is None else diagnosis.checked_sources
    lines += [text for text in looked_at if text.startswith(("people: ", "changed: "))]
    for finding in () if diagnosis is None else diagnosis.findings:
        lines += ["", f"{finding.cause} ({finding.confidence:.0%}): {finding.why}"]
        lines += [f"  saw       {item.text}" for item in finding.evidence]
        lines += [f"  not       {item.cause}: {item.why}" for item in finding.ruled_out]
        lines += [
            f"  do        {step.do}" + (f"   $ {step.command}" if step.command else "") for step in finding.actions
        ]
    if diagnosis is not None and diagnosis.distinguishing_check:
        lines += ["", f"To be sure: {diagnosis.distinguishing_check}"]
    if plan:
        lines += [
            "",
            f"Plan (mode {plan.mode}; `watchkeeper act explain {incident.id}` says more): {plan.next_step}",
        ]
        lines += [f"  {at}. {receipt.action.kind:12} {receipt.text}" for at, receipt in enumerate(plan.receipts, 1)]
    if runbook := answer.runbook:
        lines += ["", f"Runbook: {runbook}"]
    return lines
