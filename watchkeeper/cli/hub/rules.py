"""`watchkeeper rules`: check rule files, run their tests, and try them on history.

Imports happen inside the commands: reading rules needs the hub's packages, which a node does not have.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import groups, options, times
from watchkeeper.cli.progress import Progress
from watchkeeper.client.hub import Client
from watchkeeper.kit import clock, durations, wire

if TYPE_CHECKING:
    from watchkeeper.rules import replay as replays
    from watchkeeper.rules import rulefile
    from watchkeeper.store import recording

EXISTING = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, path_type=Path, dir_okay=False)


@click.group("rules", cls=groups.FullHelpGroup)
def command() -> None:
    """Check and test Prometheus rule files, see what they would have said, and put them in force."""


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=EXISTING)
@options.as_json
def check(files: tuple[Path, ...], as_json: bool) -> None:
    """Read rule FILES and print every problem with its line; exit 1 if there is one."""
    from watchkeeper.rules import rulefile

    try:
        found = rulefile.load_rules(files)
    except rulefile.RuleFileProblems as error:
        if as_json:
            said = [{"file": one.path, "line": one.line, "problem": one.problem} for one in error.problems]
            options.print_json({"ok": False, "problems": said})
            raise SystemExit(1) from error
        for problem in error.problems:
            click.echo(str(problem))
        count = len(error.problems)
        click.echo(f"{count} problem{'s' if count > 1 else ''} found", err=True)
        raise SystemExit(1) from error
    if as_json:
        options.print_json({"ok": True, "problems": [], "rules": len(found.rules), "groups": len(found.groups)})
        return
    click.echo(f"{len(found.rules)} rules in {len(found.groups)} groups: no problem found")


@command.command("slo")
@click.argument("file", type=FILE)
def write_slo(file: Path) -> None:
    """Turn the objectives in FILE (see packs/slo.yaml) into a rule file, printed."""
    from watchkeeper.rules import slo

    click.echo(slo.render_rules(slo.load_slos(file), source=file.name), nl=False)


@command.command("reload")
@options.as_json
@options.with_hub
def reload_rules(hub: Client, as_json: bool) -> None:
    """Let a running hub read its rule files and objectives again.

    The hub does so by itself within half a minute of a change, and on SIGHUP. Where a file is broken, every
    problem is printed, the exit code is 1, and the last good rules stay in force.
    """
    found = hub.reload_rules()
    if as_json:
        options.print_json(found.plain)
    else:
        click.echo(f"{found.rules} rules in {found.groups} groups are in force")


@command.command("test")
@click.argument("files", nargs=-1, required=True, type=FILE)
@options.as_json
def test(files: tuple[Path, ...], as_json: bool) -> None:
    """Run test FILES in promtool's format on our own engine; exit 1 if an expectation fails."""
    from watchkeeper.errors import WatchkeeperError
    from watchkeeper.rules import unit_tests

    found: dict[str, list[str]] = {}
    for path in files:
        try:
            found[str(path)] = failures = unit_tests.run_test_file(path)
        except WatchkeeperError as error:
            found[str(path)] = failures = [str(error)]
        if not as_json:
            click.echo("\n  ".join([f"{path}: {'ok' if not failures else 'FAILED'}", *failures]))
    failed = any(found.values())
    if as_json:
        options.print_json({"ok": not failed, "files": found})
    if failed:
        raise SystemExit(1)


@command.command("replay")
@click.argument("files", nargs=-1, required=True, type=EXISTING)
@click.option("--from", "start", metavar="TIME", default="-1h", help=f"Start: {times.FORMATS}.")
@click.option(
    "--to", "end", metavar="TIME", default="now", help="End, in the same forms; both count from a recording's end."
)
@click.option("--record", "tape_file", type=FILE, metavar="FILE", help="Take history from this recording, not a hub.")
@click.option("--interval", metavar="DURATION", default="15s", help="For groups without an interval of their own.")
@options.as_json
@options.with_hub
def replay(
    hub: Client, files: tuple[Path, ...], start: str, end: str, tape_file: Path | None, interval: str, as_json: bool
) -> None:
    """Evaluate rule FILES over history and print what would have fired, as a timeline.

    History comes from a hub or from a file of `watchkeeper record`. Nothing is written to the hub and nobody is
    told. Exits with 1 if a rule could not be asked.

    \b
    watchkeeper rules replay my-rules.yaml --from -2h
    watchkeeper rules replay my-rules.yaml --record outage.wkrec --json
    """
    from watchkeeper.rules import replay as replays
    from watchkeeper.rules import rulefile
    from watchkeeper.web import replay_hub

    rule_set, progress = rulefile.load_rules(files), Progress()
    try:
        if tape_file is not None:
            tape, since, until = _from_file(tape_file, start, end, progress)
        else:
            since, until = times.parse_window(start, end, hub)
            tape = _from_hub(hub, rule_set, since, until, progress=progress)
        _, written, _ = replays.metric_names(rule_set)
        tape.series = [one for one in tape.series if one[0].name not in written]
        on = replay_hub.load_engine(tape, progress=lambda part: progress.update(f"Loading: {part:.0%}"))
        window = replays.ReplayWindow(clock.to_ms(since), clock.to_ms(until), durations.parse_seconds(interval))
        found = replays.replay(
            rule_set,
            on,
            window,
            appender=on.appender,
            progress=lambda at, of: progress.update(f"Rule {at + 1} of {of}"),
        )
    finally:
        progress.clear()
    _print(found, since, until, as_json=as_json)
    if found.failures:
        raise SystemExit(1)


def _from_file(path: Path, start: str, end: str, progress: Progress) -> tuple[recording.Recording, datetime, datetime]:
    from watchkeeper.store import recording

    tape = recording.read(path, progress=lambda lines: progress.update(f"Reading: {lines:,} lines"))
    last, given = clock.from_ms(tape.header.to_ms), click.get_current_context().get_parameter_source("start")
    is_default = given is click.core.ParameterSource.DEFAULT
    since = clock.from_ms(tape.header.from_ms) if is_default else times.parse(start, last)
    until = times.parse(end, last)
    if since >= until:
        raise click.UsageError("--from must be before --to")
    return tape, since, until


def _from_hub(
    hub: Client, rule_set: rulefile.RuleSet, since: datetime, until: datetime, *, progress: Progress
) -> recording.Recording:
    """What the rules read, from before the first evaluation as far as they look back."""
    from watchkeeper.rules import replay as replays
    from watchkeeper.store import recording

    wanted, _, lookback_ms = replays.metric_names(rule_set)
    early = clock.from_ms(clock.to_ms(since) - lookback_ms)
    matches = [f'{{__name__="{name}"}}' for name in sorted(wanted)]
    with tempfile.NamedTemporaryFile(suffix=".wkrec") as kept:
        pieces = hub.recording(
            start=times.seconds(early),
            end=times.seconds(until),
            matches=matches,
            progress=lambda size: progress.update(f"From the hub: {size / 2**20:.1f} MiB"),
        )
        for piece in pieces:
            kept.write(piece)
        kept.flush()
        return recording.read(Path(kept.name))


def _print(found: replays.Timeline, since: datetime, until: datetime, *, as_json: bool) -> None:
    fired = found.fired
    if as_json:
        span = {"from": wire.format_time(since), "to": wire.format_time(until), "steps": found.steps}
        listed = [wire.to_plain(episode) for episode in found.episodes]
        options.print_json({**span, "fired": len(fired), "episodes": listed, "failures": wire.to_plain(found.failures)})
        return
    width = max(20, shutil.get_terminal_size().columns - 62)
    for episode in fired:
        bar = _bar(episode, since, until, width=width)
        assert episode.fired_at is not None
        lasted = durations.format_seconds(round(((episode.ended_at or until) - episode.fired_at).total_seconds()))
        about = episode.labels.without("alertname")
        click.echo(f"{episode.fired_at:%m-%d %H:%M:%S}  {lasted:>8}  {episode.alert:<32.32} |{bar}|  {about}")
    pending = len(found.episodes) - len(fired)
    would = f"{len(fired)} alert{'s' * (len(fired) != 1)} would have fired"
    click.echo(f"{would}, {pending} waited and did not, in {found.steps:,} evaluations")
    for failure in found.failures:
        click.echo(f"{failure.rule} could not be asked: {failure.problem}", err=True)


def _bar(episode: replays.Episode, since: datetime, until: datetime, *, width: int) -> str:
    """The window as a line: `.` waiting, `=` firing."""

    def place(at: datetime) -> int:
        return min(width - 1, max(0, int((at - since) / (until - since) * width)))

    line = [" "] * width
    last = place(episode.ended_at or until)
    for at in range(place(episode.active_at), last + 1):
        line[at] = "."
    if episode.fired_at is not None:
        for at in range(place(episode.fired_at), last + 1):
            line[at] = "="
    return "".join(line)
