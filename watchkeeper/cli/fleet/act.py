"""`watchkeeper act`: explain, approve, reject, halt and audit repairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import SettingsError, WireError
from watchkeeper.kit import durations, wire
from watchkeeper.model import incidents
from watchkeeper.remediate import explanation, policy


@click.group("act", cls=options.FullHelpGroup)
def command() -> None:
    """Show and control repairs.

    A repair changes a machine only if [remediate] mode, or a [[remediate.trust]] for its cause or pool, is ask or act.
    """


@command.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include the newest 100 finished repairs.")
@options.with_hub_and_json
def list_repairs(hub: Client, show_all: bool, as_json: bool) -> None:
    """List repairs that wait for approval or a guard, run, or keep a node out of service."""
    answer = hub.repairs(all=show_all)
    for line in _halt_lines(answer.switch) if not as_json else ():
        click.echo(line)
    rows = []
    for repair in answer.repairs:
        about = [
            _format_state(repair.state) + (", stopped" if repair.stopped_by else ""),
            repair.mode,
            repair.node.node or (repair.node.domain or "").replace("=", " "),
            repair.cause,
        ]
        rows.append([repair.id, *about, times.utc(repair.made_at), _format_detail(repair)])
    header = ["repair", "state", "mode", "node", "cause", "planned", "detail"]
    options.print_rows(answer.plain, header, rows, as_json=as_json, empty="No repairs.")


@command.command("explain")
@click.argument("incident", type=options.INCIDENT)
@options.with_hub_and_json
def explain(hub: Client, incident: str, as_json: bool) -> None:
    """Explain the repair of an incident: plan, mode, refusals of guards, and every call it would make."""
    explained = hub.repair(incident)
    options.print_result(explained.plain, describe(explained), as_json=as_json)


@command.command("approve")
@click.argument("incident", type=options.INCIDENT)
@click.option("--plan", "digest", help="Digest of the plan that you reviewed.  [default: the current plan]")
@options.with_hub
def approve(hub: Client, incident: str, digest: str | None) -> None:
    """Approve the repair plan of an incident; it starts when no guard refuses it."""
    if digest is None:
        explained = hub.repair(incident)
        if explained.repair is None:
            raise click.ClickException(f"{incident} has no repair to approve: {explained.why_not or 'none is planned'}")
        for line in _step_lines(explained.steps):
            click.echo(line)
        digest = explained.repair.digest
    repair = hub.approve(incident, digest=digest)
    click.echo(f"{repair.id} is {_format_state(repair.state)}. {repair.said}")
    click.echo(f"{incident} is assigned to {repair.approved_by}.")


@command.command("reject")
@click.argument("incident", type=options.INCIDENT)
@click.option("--why", required=True, help="Reason, kept in the journal.")
@options.with_hub
def reject(hub: Client, incident: str, why: str) -> None:
    """Reject a repair and undo its steps, including a cordon that a failed repair left."""
    repair = hub.reject(incident, why=why)
    click.echo(f"{repair.id} is {_format_state(repair.state)}.")


@command.command("done")
@click.argument("incident", type=options.INCIDENT)
@options.with_hub
def done(hub: Client, incident: str) -> None:
    """Confirm that you completed the manual step of a repair."""
    repair = hub.finish_step(incident)
    click.echo(f"{repair.id} is {_format_state(repair.state)}. {repair.said}")


@command.command("again")
@click.argument("incident", type=options.INCIDENT)
@options.with_hub
def again(hub: Client, incident: str) -> None:
    """Retry a repair that failed, was rejected, or did not help."""
    repair = hub.retry_repair(incident)
    click.echo(f"{repair.id} is {_format_state(repair.state)}. {repair.said}")


@command.command("stop")
@click.argument("incident", type=options.INCIDENT, required=False)
@click.option("--why", required=True, help="Reason, visible to all users.")
@options.with_hub
def stop(hub: Client, incident: str | None, why: str) -> None:
    """Halt all repairs now, or the repair of INCIDENT: no call is made to a machine until `act resume`."""
    if incident is not None:
        repair = hub.stop_repair(incident, why=why)
        click.echo(f"{repair.id}: {repair.said}.")
        return
    hub.stop_repairs(why=why)
    click.echo("All repairs are halted at their current step. To continue: `watchkeeper act resume`.")


@command.command("resume")
@click.argument("incident", type=options.INCIDENT, required=False)
@options.with_hub
def resume(hub: Client, incident: str | None) -> None:
    """Resume repairs after `act stop`, or the stopped repair of INCIDENT."""
    if incident is not None:
        repair = hub.resume_repair(incident)
        click.echo(f"{repair.id} is {repair.activity}.")
        return
    hub.resume_repairs()
    click.echo("Repairs resumed.")


@command.command("reset")
@options.with_hub
def reset(hub: Client) -> None:
    """Close the circuit breaker after it has tripped."""
    hub.reset_breaker()
    click.echo("The circuit breaker is closed.")


@command.command("log")
@click.option("--last", type=click.IntRange(1, 10_000), default=200, help="Show this many of the newest entries.")
@options.with_hub_and_json
def show_log(hub: Client, last: int, as_json: bool) -> None:
    """Show the audit log: who decided, approved, refused or called what, why, and the result."""
    entries = hub.repair_log(limit=last)
    rows = [
        [str(entry.seq), times.utc(entry.at), entry.actor, str(entry.body.get("repair", "")), str(entry.body["text"])]
        for entry in entries
    ]
    header = ["entry", "time", "who", "repair", "what"]
    options.print_rows([entry.plain for entry in entries], header, rows, as_json=as_json)


@command.command("test")
@click.argument("file", metavar="POLICY", type=options.EXISTING_FILE)
@click.argument("reports", metavar="[REPORT]...", nargs=-1, type=options.EXISTING_FILE)
@options.with_hub_and_json
def test_policy(hub: Client, file: Path, reports: tuple[Path, ...], as_json: bool) -> None:
    """Test a policy file on past incidents: show the plan that each would get.

    Uses the incidents of the hub, or those in REPORT files (`watchkeeper incidents report INC-7 --json`). Reports need
    no hub and are tested in mode act with default limits.
    """
    rules = policy.load(file)
    if reports:
        past = [_read_incident(report) for report in reports]
        replayed = wire.to_plain(explanation.replay_reports(past, rules))
        replays = reading.read_answer(tuple[answers.ReplayedIncident, ...], replayed)
    else:
        replays = hub.test_policy(file.read_text(encoding="utf-8"))
    rows = [[plan.incident, plan.cause, plan.mode, _format_outcome(plan), " → ".join(plan.steps)] for plan in replays]
    header = ["incident", "cause", "mode", "result", "steps"]
    options.print_rows([plan.plain for plan in replays], header, rows, as_json=as_json)
    if not as_json:
        click.echo(f"{sum(plan.would_begin for plan in replays)} of {len(replays)} would start without approval.")


def _read_incident(report: Path) -> incidents.Incident:
    try:
        plain = json.loads(report.read_text(encoding="utf-8"))
        return wire.from_plain(incidents.Incident, plain.get("incident", plain))
    except (ValueError, AttributeError, WireError) as error:
        remedy = "Write one with `watchkeeper incidents report INC-7 --json`"
        raise SettingsError(f"is not an incident report: {error}", where=str(report), remedy=remedy) from error


def describe(explained: answers.ExplainedRepair) -> list[str]:
    repair = explained.repair
    lines = [f"{explained.incident}  {explained.cause}: {_format_verdict(explained)}", *_halt_lines(explained.switch)]
    if repair is not None:
        why = "" if repair.said == explained.mode_why else f": {repair.said}"
        lines.append(f"repair    {repair.id} is {_format_state(repair.state)} since {times.utc(repair.since)}{why}")
        lines += [f"waiting   {obstacle}" for obstacle in _list_obstacles(repair)]
    lines.append(f"plan      {explained.digest or 'no action on a machine'}; policy {explained.policy_key}")
    lines.append(f"mode      {explained.mode_why}")
    lines += [f"guard     {refusal.guard}: {refusal.text}" for refusal in explained.refusals]
    if explained.digest is not None and not explained.refusals:
        lines.append("guards    none refuses")
    return [*lines, "", *_step_lines(explained.steps)]


def _format_verdict(explained: answers.ExplainedRepair) -> str:
    if explained.why_not:
        return explained.why_not
    repair = explained.repair
    if repair is not None and repair.state not in ("planned", "approved"):
        return f"repair is {_format_state(repair.state)}"
    if explained.refusals:
        return f"would be refused by {explained.refusals[0].guard}"
    return "waits for approval" if explained.mode == "ask" else "starts without approval"


def _step_lines(steps: Sequence[answers.ExplanationStep]) -> list[str]:
    lines = []
    for at, step in enumerate(steps, 1):
        seconds = step.limit_seconds
        limit = "" if seconds is None else f"   (within {durations.format_seconds(seconds)})"
        lines += [f"  {at}. {step.kind:15} {step.why}", f"     {step.call}{limit}"]
    return lines


def _format_detail(repair: answers.RepairView) -> str:
    obstacles = _list_obstacles(repair)
    if not obstacles:
        return repair.said[:100]
    more = f" (and {len(obstacles) - 1} more)" if len(obstacles) > 1 else ""
    return obstacles[0][: 100 - len(more)] + more


def _list_obstacles(repair: answers.RepairView) -> list[str]:
    """What a repair waits for; an action that a person must take comes first."""
    if repair.state == "planned" and repair.mode == "ask":
        return [f"approval: `watchkeeper act approve {repair.incident}`"]
    if repair.state == "planned" and repair.mode == "suggest":
        return ["Manual: the mode is suggest"]
    return list(repair.waits_for)


def _format_state(state: str) -> str:
    return state.replace("_", " ")


def _format_outcome(replay: answers.ReplayedIncident) -> str:
    if replay.would_begin:
        return "starts"
    if replay.refusal:
        return f"refused by {replay.refusal.partition(':')[0]}"
    return "waits for approval" if replay.mode == "ask" else "-"


def _halt_lines(switch: answers.RepairSwitchView) -> list[str]:
    lines = []
    if switch.is_stopped and switch.stopped_at is not None:
        lines.append(f"HALTED by {switch.stopped_by} at {times.utc(switch.stopped_at)}: {switch.stopped_why}")
    if switch.is_tripped and switch.tripped_at is not None:
        why = f"{switch.tripped_why}; close it with `watchkeeper act reset`"
        lines.append(f"CIRCUIT BREAKER tripped at {times.utc(switch.tripped_at)}: {why}")
    return lines
