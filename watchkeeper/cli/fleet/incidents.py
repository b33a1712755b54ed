"""`watchkeeper incidents`: list, show, acknowledge, assign, silence and resolve incidents."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire

NO_IMPACT = "impact none measured: no GPU is lost or idle, and no job is stopped"
UNKNOWN_IMPACT = "impact unknown: no source reports which GPUs it uses"


class IncidentsGroup(options.FullHelpGroup):
    """`incidents INC-1` is short for `incidents show INC-1`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_incident_id = bool(args) and options.INCIDENT.FORM.fullmatch(args[0]) is not None
        return super().resolve_command(ctx, ["show", *args] if is_incident_id else args)


@click.group("incidents", cls=IncidentsGroup, invoke_without_command=True)
@click.option("--all", "show_all", is_flag=True, help="Include resolved incidents.")
@options.with_hub_and_json
@click.pass_context
def command(ctx: click.Context, hub: Client, show_all: bool, as_json: bool) -> None:
    """List open incidents, show one (`incidents INC-1`), or work on it.

    Exit code 0 if no incident is open, 1 if one is open.
    """
    if ctx.invoked_subcommand is not None:
        return
    answer = hub.list_incidents(all=show_all)
    incidents = answer.incidents
    # An empty list must not hide that the hub is degraded.
    for problem in hub.status().degraded:
        click.echo(f"degraded: {problem}", err=True)
    rows = []
    for card in incidents:
        state = f"part of {card.part_of}" if card.part_of else format_state(card)
        state += f" ({card.assignee})" if card.assignee and card.state == "acknowledged" else ""
        state += f", {card.repair.activity}" if card.repair else ""
        state += ", silenced" if card.silenced_by and not card.part_of else ""
        title = f"{card.title} (beside {card.root})" if card.root else card.title
        rows.append([card.id, card.severity, state, times.utc(card.opened_at), card.cause, title])
    header = ["id", "severity", "state", "opened", "cause", "what"]
    plain = [incident.plain for incident in incidents]
    options.print_rows(plain, header, rows, as_json=as_json, empty="No open incidents.")
    if answer.plain.get("has_more"):
        click.echo(f"The newest {len(incidents):,}; there are more.", err=True)
    if any(incident.state != "resolved" for incident in incidents):
        ctx.exit(1)


@command.command("show")
@click.argument("id", type=options.INCIDENT)
@options.with_hub_and_json
def show(hub: Client, id: str, as_json: bool) -> None:
    """Show one incident: cause, evidence, excluded causes, and the repair plan."""
    answer = hub.incident(id)
    options.print_result(answer.plain, describe(answer), as_json=as_json)


@command.command("ack")
@click.argument("id", type=options.INCIDENT)
@options.with_hub
def acknowledge(hub: Client, id: str) -> None:
    """Acknowledge an incident: confirm that you work on it."""
    hub.acknowledge(id)
    click.echo(f"{id} acknowledged.")


@command.command("resolve")
@click.argument("id", type=options.INCIDENT)
@click.option("--why", required=True, help="What ended it; kept in the journal.")
@click.option("--cause", help="The actual cause, if the diagnosis was wrong.")
@options.with_hub
def resolve(hub: Client, id: str, why: str, cause: str | None) -> None:
    """Resolve an incident by hand."""
    if cause is not None:
        hub.correct(id, cause, why=why)
    answer = hub.resolve(id, why=why)
    if answer.incident.state == "resolved":
        click.echo(f"{id} resolved.")
    else:
        texts = [entry.body["text"] for entry in answer.timeline if entry.kind == "recovering"]
        click.echo(f"{id} is recovering: {texts[-1]}.")


@command.command("cause")
@click.argument("id", type=options.INCIDENT)
@click.argument("cause")
@click.option("--why", default="", help="How you know; shown with similar incidents.")
@options.with_hub
def cause(hub: Client, id: str, cause: str, why: str) -> None:
    """Confirm the diagnosed cause of an incident by giving it again, or correct it by giving another."""
    correction = hub.correct(id, cause, why=why).correction
    is_confirmed = correction.was == cause
    click.echo(f"{id}: {correction.cause} confirmed." if is_confirmed else f"{id}: {cause}, not {correction.was}.")


@command.command("assign")
@click.argument("id", type=options.INCIDENT)
@click.argument("person")
@options.with_hub
def assign(hub: Client, id: str, person: str) -> None:
    """Assign an incident to a person; this also acknowledges it."""
    hub.assign(id, to=person)
    click.echo(f"{id} assigned to {person}.")


@command.command("silence")
@click.argument("id", type=options.INCIDENT)
@click.option("--for", "duration", required=True, metavar="TIME", help="Length of the silence, for example 2h.")
@click.option("--reason", required=True, help="Reason, visible to all users.")
@options.with_hub
def silence(hub: Client, id: str, duration: str, reason: str) -> None:
    """Silence all notifications about the place of an incident for some time."""
    silence = hub.silence_incident(id, duration=duration, reason=reason)
    click.echo(f"{silence.id}: {', '.join(silence.matchers)} silenced until {times.utc(silence.ends_at)}.")


@command.command("notices")
@click.argument("id", type=options.INCIDENT)
@options.with_hub_and_json
def notices(hub: Client, id: str, as_json: bool) -> None:
    """List the notifications of an incident: receiver, time, state and answer."""
    notices = hub.notices(id)
    rows = [
        [row.receiver, row.occasion, row.state, str(row.tries), times.utc(row.sent_at or row.due_at), row.answer]
        for row in notices
    ]
    header = ["receiver", "occasion", "state", "tries", "sent or due", "answer"]
    empty = "No notifications. Receivers are set with `notify.via`."
    options.print_rows(wire.to_plain(notices), header, rows, as_json=as_json, empty=empty)


@command.command("report")
@click.argument("id", type=options.INCIDENT)
@options.with_hub_and_json
def report(hub: Client, id: str, as_json: bool) -> None:
    """Print the full report of an incident as Markdown, or as JSON."""
    if as_json:
        options.print_json(hub.report(id))
    else:
        click.echo(hub.report_text(id), nl=False)


@command.command("digest")
@click.option("--days", type=click.IntRange(1, 366), default=7, help="Summarise this many days.")
@options.with_hub_and_json
def digest(hub: Client, days: int, as_json: bool) -> None:
    """Summarise incidents by cause: times to detect, diagnose and repair, noisy rules, repeated faults."""
    answer = hub.digest(days=days)
    options.print_result(answer.plain["digest"], [answer.text], as_json=as_json)


@command.command("note")
@click.argument("id", type=options.INCIDENT)
@click.argument("text")
@options.with_hub
def note(hub: Client, id: str, text: str) -> None:
    """Add a note to the timeline of an incident."""
    hub.note(id, text=text)
    click.echo(f"Note added to {id}.")


def format_state(incident: answers.IncidentCard | answers.NamedIncident) -> str:
    return "recovering" if incident.recovering_since else incident.state.value


def _describe_impact(incident: answers.NamedIncident, blast: answers.BlastRadius) -> str:
    if blast.gpus:
        currency, price = blast.currency.replace("USD", "dollars"), blast.dollars_per_hour
        cost = "cost unknown" if price is None else f"{price:,.2f} {currency} per hour"
        elsewhere = f" ({', '.join(blast.counted_in)} counts the rest)" if blast.counted_in else ""
        return f"impact {blast.gpus} GPUs do no work, {blast.gpu_hours:g} GPU-hours so far, {cost}{elsewhere}"
    if blast.counted_in:
        return f"impact counted in {', '.join(blast.counted_in)}"
    # No GPUs means unknown for a model or job whose GPUs no source reports.
    is_stopped = any(hit.stopped for hit in blast.hits)
    is_known = not is_stopped and (blast.hits or incident.place.node)
    return NO_IMPACT if is_known else UNKNOWN_IMPACT


def describe(answer: answers.FullIncidentDetail) -> list[str]:
    incident, diagnosis, plan, blast = answer.incident, answer.diagnosis, answer.plan, answer.blast
    ended = f", resolved {times.utc(incident.resolved_at)}" if incident.resolved_at else ""
    state = f"{incident.severity}, {format_state(incident)}; opened {times.utc(incident.opened_at)}{ended}"
    lines = [f"{incident.id}  {incident.title}", state]
    if incident.assignee:
        lines.append(f"assigned to {incident.assignee}")
    if incident.workloads:
        is_certain = blast is None or incident.place.domain or blast.gpus or blast.counted_in
        lines.append(f"{'affects' if is_certain else 'may affect'} {', '.join(incident.workloads)}")
    if blast:
        lines.append(_describe_impact(incident, blast))
        if blast.teams:
            lines.append(f"teams {', '.join(blast.teams)}")
    if silence := answer.silenced_by:
        lines.append(f"silenced by {silence.author} until {times.utc(silence.ends_at)}: {silence.reason}")
    if incident.root:
        lines.append(f"beside {incident.root}, which stops a job here")
    if incident.part_of:
        lines.append(f"now part of {incident.part_of}")
    checked_sources = () if diagnosis is None else diagnosis.checked_sources
    lines += [text for text in checked_sources if text.startswith(("people: ", "changed: "))]
    for finding in () if diagnosis is None else diagnosis.findings:
        lines += ["", f"{finding.cause} ({finding.confidence:.0%}): {finding.why}"]
        lines += [f"  evidence  {item.text}" for item in finding.evidence]
        lines += [f"  ruled out {item.cause}: {item.why}" for item in finding.ruled_out]
        for step in finding.actions:
            lines.append(f"  action    {step.do}" + (f"   $ {step.command}" if step.command else ""))
    if diagnosis is not None and diagnosis.distinguishing_check:
        lines += ["", diagnosis.distinguishing_check]
    if plan:
        lines += ["", f"Plan (mode {plan.mode}; details: `watchkeeper act explain {incident.id}`): {plan.next_step}"]
        lines += [f"  {at}. {receipt.action.kind:12} {receipt.text}" for at, receipt in enumerate(plan.receipts, 1)]
    if runbook := answer.runbook:
        lines += ["", f"Runbook: {runbook}"]
    return lines
