"""`watchkeeper act`: what would be done about an incident and why, people's word on it, and the audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from watchkeeper.cli import groups, options, times
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import durations, wire
from watchkeeper.model import incidents
from watchkeeper.remediate import explanation, policy


@click.group("act", cls=groups.FullHelpGroup)
def command() -> None:
    """Repairs: from a plan to a healthy node.

    Nothing is touched unless [remediate] mode, or a [[remediate.trust]] for the cause or pool, says ask or act.
    """


@command.command("list")
@click.option("--all", "show_all", is_flag=True, help="Those that ended too, the newest hundred.")
@options.as_json
@options.with_hub
def list_repairs(hub: Client, show_all: bool, as_json: bool) -> None:
    """Repairs that wait for a yes or a guard, run, or hold a node."""
    answer = hub.repairs(all=show_all)
    if as_json:
        options.print_json(answer.plain)
        return
    for line in _halted(answer.switch):
        click.echo(line)
    if not answer.repairs:
        click.echo("No repairs.")
        return
    rows = [
        [
            one.id,
            _words(one.state),
            one.mode,
            one.node.node or "",
            one.cause,
            times.utc(one.made_at),
            _now(one),
        ]
        for one in answer.repairs
    ]
    options.print_table(["repair", "state", "mode", "node", "cause", "planned", "now"], rows)


@command.command("explain")
@click.argument("incident", type=options.INCIDENT)
@options.as_json
@options.with_hub
def explain(hub: Client, incident: str, as_json: bool) -> None:
    """Why an incident has this plan and this mode, what guards say now, and every call that would be made."""
    told = hub.repair(incident)
    if as_json:
        options.print_json(told.plain)
        return
    for line in describe(told):
        click.echo(line)


@command.command("approve")
@click.argument("incident", type=options.INCIDENT)
@click.option("--plan", "digest", help="The plan you have seen, by its digest; the one that is shown now by default.")
@options.with_hub
def approve(hub: Client, incident: str, digest: str | None) -> None:
    """Let the plan of an incident be carried out, as soon as no guard objects."""
    if digest is None:
        told = hub.repair(incident)
        if told.repair is None:
            raise click.ClickException(f"{incident} has no repair to approve: {told.why_not or 'there is none yet'}")
        for line in _steps(told.steps):
            click.echo(line)
        digest = told.repair.digest
    repair = hub.approve(incident, digest=digest)
    click.echo(f"{repair.id} is {_words(repair.state)}. {repair.said}")


@command.command("reject")
@click.argument("incident", type=options.INCIDENT)
@click.option("--why", required=True, help="Kept in the journal.")
@options.with_hub
def reject(hub: Client, incident: str, why: str) -> None:
    """Do not carry it out; what was done so far is undone, also a cordon that a failed repair left."""
    repair = hub.reject(incident, why=why)
    click.echo(f"{repair.id} is {_words(repair.state)}.")


@command.command("done")
@click.argument("incident", type=options.INCIDENT)
@options.with_hub
def done(hub: Client, incident: str) -> None:
    """Say that you have done the step that only a person can do."""
    repair = hub.finish_step(incident)
    click.echo(f"{repair.id} is {_words(repair.state)}. {repair.said}")


@command.command("again")
@click.argument("incident", type=options.INCIDENT)
@options.with_hub
def again(hub: Client, incident: str) -> None:
    """Ask for another attempt after one that failed, was rejected, or did not help."""
    repair = hub.retry_repair(incident)
    click.echo(f"{repair.id} is {_words(repair.state)}. {repair.said}")


@command.command("stop")
@click.option("--why", required=True, help="Everybody can read it.")
@options.with_hub
def stop(hub: Client, why: str) -> None:
    """Stop everything, now: no call is made to any machine until `act resume`."""
    hub.stop_repairs(why=why)
    click.echo("Stopped. Repairs stay where they are; `watchkeeper act resume` lets them go on.")


@command.command("resume")
@options.with_hub
def resume(hub: Client) -> None:
    """Let everything go on after `act stop`."""
    hub.resume_repairs()
    click.echo("Repairs go on.")


@command.command("reset")
@options.with_hub
def reset(hub: Client) -> None:
    """Close the circuit breaker after it has tripped."""
    hub.reset_breaker()
    click.echo("The circuit breaker is closed.")


@command.command("log")
@click.option("--last", type=click.IntRange(1, 10_000), default=200, help="How many entries.")
@options.as_json
@options.with_hub
def show_log(hub: Client, last: int, as_json: bool) -> None:
    """The audit: who decided, asked, refused and called what, why, and what came of it."""
    entries = hub.repair_log(limit=last)
    if as_json:
        options.print_json([one.plain for one in entries])
        return
    rows = [
        [
            str(one.seq),
            times.utc(one.at),
            one.actor,
            str(one.body.get("repair", "")),
            str(one.body["text"]),
        ]
        for one in entries
    ]
    options.print_table(["entry", "at", "who", "repair", "what"], rows)


@command.command("test")
@click.argument("file", metavar="POLICY", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument(
    "reports", metavar="[REPORT]...", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@options.as_json
@options.with_hub
def test_policy(hub: Client, file: Path, reports: tuple[Path, ...], as_json: bool) -> None:
    """Play a policy against incidents of the past: which plan each would have got.

    Those that the hub remembers, or those of reports (`watchkeeper incidents report INC-7 --json`), for which no hub is
    asked: in mode act, with the usual limits.
    """
    chosen = policy.load(file)
    if reports:
        past = [_incident_of(report) for report in reports]
        rehearsed = wire.to_plain(explanation.rehearse_alone(past, chosen))
        found = reading.read_answer(tuple[answers.Rehearsed, ...], rehearsed)
    else:
        found = hub.test_policy(file.read_text(encoding="utf-8"))
    if as_json:
        options.print_json([one.plain for one in found])
        return
    rows = [[one.incident, one.cause, one.mode, _fate(one), " → ".join(one.steps)] for one in found]
    options.print_table(["incident", "cause", "mode", "would", "steps"], rows)
    begun = sum(one.would_begin for one in found)
    click.echo(f"{begun} of {len(found)} would have begun by themselves.")


def _incident_of(report: Path) -> incidents.Incident:
    try:
        plain = json.loads(report.read_text(encoding="utf-8"))
        return wire.from_plain(incidents.Incident, plain.get("incident", plain))
    except (ValueError, AttributeError, WireError) as error:
        raise SettingsError(
            f"it is not the report of an incident: {error}",
            where=str(report),
            remedy="Write one with `watchkeeper incidents report INC-7 --json`",
        ) from error


def describe(told: answers.ExplainedRepair) -> list[str]:
    """The answer first: what would happen now, then why."""
    repair = told.repair
    lines = [f"{told.incident}  {told.cause}: {_verdict(told)}", *_halted(told.switch)]
    if repair is not None:
        why = "" if repair.said == told.mode_why else f": {repair.said}"
        lines.append(f"repair    {repair.id} is {_words(repair.state)} since {times.utc(repair.since)}{why}")
        lines += [f"waits     for {one}" for one in _waits_for(repair)]
    lines.append(f"plan      {told.digest or 'none for a machine'}, from {told.policy_key} of the policy")
    lines.append(f"mode      {told.mode_why}")
    lines += [f"guard     {one.guard}: {one.text}" for one in told.refusals]
    if told.digest is not None and not told.refusals:
        lines.append("guards    none objects")
    return [*lines, "", *_steps(told.steps)]


def _verdict(told: answers.ExplainedRepair) -> str:
    if told.why_not:
        return told.why_not
    repair = told.repair
    if repair is not None and repair.state not in ("planned", "approved"):
        return f"its repair is {_words(repair.state)}"
    if told.refusals:
        return f"would be refused by {told.refusals[0].guard}"
    return "waits for a person's yes" if told.mode == "ask" else "begins by itself"


def _steps(steps: Sequence[answers.ExplanationStep]) -> list[str]:
    lines = []
    for at, step in enumerate(steps, 1):
        seconds = step.limit_seconds
        limit = "" if seconds is None else f"   (within {durations.format_seconds(seconds)})"
        lines += [f"  {at}. {step.kind:15} {step.why}", f"     {step.call}{limit}"]
    return lines


def _now(repair: answers.RepairView) -> str:
    waits_for = _waits_for(repair)
    if not waits_for:
        return repair.said[:100]
    more = f" (and {len(waits_for) - 1} more)" if len(waits_for) > 1 else ""
    return f"waits for {waits_for[0][: 100 - len(more)]}{more}"


def _waits_for(repair: answers.RepairView) -> list[str]:
    """What people should know first: what is wanted of them."""
    if repair.state == "planned" and repair.mode == "ask":
        return [f"a person's yes: `watchkeeper act approve {repair.incident}`"]
    if repair.state == "planned" and repair.mode == "suggest":
        return ["a person who does it: the mode is suggest"]
    return list(repair.waits_for)


def _words(state: str) -> str:
    return state.replace("_", " ")


def _fate(one: answers.Rehearsed) -> str:
    if one.would_begin:
        return "begin"
    return f"be refused by {one.refusal.partition(':')[0]}" if one.refusal else "wait" if one.mode == "ask" else "-"


def _halted(switch: answers.RepairSwitchView) -> list[str]:
    lines = []
    if switch.is_stopped and switch.stopped_at is not None:
        lines.append(f"STOPPED by {switch.stopped_by} at {times.utc(switch.stopped_at)}: {switch.stopped_why}")
    if switch.is_tripped and switch.tripped_at is not None:
        lines.append(f"BREAKER tripped at {times.utc(switch.tripped_at)}: {switch.tripped_why}; `act reset` closes it")
    return lines
