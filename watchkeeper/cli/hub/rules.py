"""`watchkeeper rules`: check rule files, run their tests, replay them on history, and reload them.

The commands import their modules themselves: they need the hub's packages, which an agent-only install lacks.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli import options, times
from watchkeeper.cli.terminal import Progress
from watchkeeper.client.hub import Client
from watchkeeper.kit import clock, durations, wire

if TYPE_CHECKING:
    from watchkeeper.rules import replay as replays
    from watchkeeper.rules import rulefile
    from watchkeeper.store import recording

EXISTING_PATH = click.Path(exists=True, path_type=Path)


@click.group("rules", cls=options.FullHelpGroup)
def command() -> None:
    """Check and test Prometheus rule files, replay them on history, and reload them."""


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=EXISTING_PATH)
@options.as_json
def check(files: tuple[Path, ...], as_json: bool) -> None:
    """Check rule FILES and print every problem with its line; exit code 1 if there is one.

    A rule with a mistake is valid, so the hub loads it, but it does not do what it seems to: its threshold is never
    reached or always, a healthy GPU fires it too, or it does not end. Each mistake names the rule to use instead.
    """
    from watchkeeper.errors import RuleFileError
    from watchkeeper.rules import rule_mistakes, rulefile

    rule_set, invalid = rulefile.read_valid(rulefile.read_texts(files))
    recorded = rule_mistakes.recorded_expressions(rule_set.rules)
    problems = [(row, {"kind": "invalid"}) for row in invalid]
    for rule in rule_set.rules:
        for mistake in rule_mistakes.check_rule(rule, recorded):
            row = RuleFileError(f"{rule.name}: {'; '.join(mistake.lines)}", path=rule.path, line=rule.line)
            problems.append((row, {"kind": "mistake", "rule": rule.name, **wire.to_plain(mistake)}))
    problems.sort(key=lambda pair: (pair[0].path, pair[0].line or 0))
    plain = [{"file": row.path, "line": row.line, "problem": row.problem, **more} for row, more in problems]
    rules, groups = len(rule_set.rules), len(rule_set.groups)
    lines = [str(row).replace("; use ", "\n    use ") for row, _ in problems] or [
        f"{rules} rules in {groups} groups: no problem found"
    ]
    counts = {"ok": not problems, "loads": not invalid, "problems": plain, "rules": rules, "groups": groups}
    options.print_result(counts, lines, as_json=as_json)
    if problems and not as_json:
        click.echo(f"{len(problems)} problem{'s' * (len(problems) > 1)} found", err=True)
    if problems:
        raise SystemExit(1)


@command.command("slo")
@click.argument("file", type=options.EXISTING_FILE)
def write_slo(file: Path) -> None:
    """Print the rule file for the SLOs in FILE (see packs/slo.yaml)."""
    from watchkeeper.rules import slo

    click.echo(slo.render_rules(slo.load_slos(file), source=file.name), nl=False)


@command.command("reload")
@options.with_hub_and_json
def reload_rules(hub: Client, as_json: bool) -> None:
    """Reload the rule files and SLOs of a running hub.

    The hub also reloads within 30 seconds of a change, and on SIGHUP. If a file is invalid, every problem is
    printed, the exit code is 1, and the previous rules stay active.
    """
    reloaded = hub.reload_rules()
    line = f"{reloaded.rules} rules in {reloaded.groups} groups are active"
    options.print_result(reloaded.plain, [line], as_json=as_json)


@command.command("test")
@click.argument("files", nargs=-1, required=True, type=options.EXISTING_FILE)
@options.as_json
def test(files: tuple[Path, ...], as_json: bool) -> None:
    """Run test FILES in promtool's format on the embedded engine; exit code 1 if a test fails."""
    from watchkeeper.errors import WatchkeeperError
    from watchkeeper.rules import unit_tests

    failures_by_file: dict[str, list[str]] = {}
    for path in files:
        try:
            failures_by_file[str(path)] = failures = unit_tests.run_test_file(path)
        except WatchkeeperError as error:
            failures_by_file[str(path)] = failures = [str(error)]
        if not as_json:
            click.echo("\n  ".join([f"{path}: {'ok' if not failures else 'FAILED'}", *failures]))
    failed = any(failures_by_file.values())
    if as_json:
        options.print_json({"ok": not failed, "files": failures_by_file})
    if failed:
        raise SystemExit(1)


@command.command("replay")
@click.argument("files", nargs=-1, required=True, type=EXISTING_PATH)
@click.option("--from", "start", metavar="TIME", default="-1h", help=f"Start of the replay: {times.FORMATS}.")
@click.option("--to", "end", metavar="TIME", default="now", help="End; with --record, `now` is the recording's end.")
@click.option(
    "--record",
    "recording_file",
    type=options.EXISTING_FILE,
    metavar="FILE",
    help="Replay this recording, not a hub's history.",
)
@click.option("--interval", type=options.Duration(), default="15s", help="Interval of rule groups that set none.")
@options.with_hub_and_json
def replay(
    hub: Client, files: tuple[Path, ...], recording_file: Path | None, interval: float, as_json: bool, **window: str
) -> None:
    """Evaluate rule FILES on history and print the alerts that would have fired, as a timeline.

    History comes from a hub or from a file of `watchkeeper record`. Nothing is written to the hub and no notifications
    are sent. Exit code 1 if a rule cannot be evaluated.

    \b
    watchkeeper rules replay my-rules.yaml --from -2h
    watchkeeper rules replay my-rules.yaml --record outage.wkrec --json
    """
    from watchkeeper.rules import replay as replays
    from watchkeeper.rules import rulefile, series_read
    from watchkeeper.web import replay_hub

    rule_set, progress = rulefile.load_rules(files), Progress()
    try:
        if recording_file is not None:
            recorded, since, until = _read_recording(recording_file, progress, **window)
        else:
            since, until = times.parse_window(window["start"], window["end"], hub)
            recorded = _fetch_recording(hub, rule_set, since, until, progress=progress)
        written = series_read.of_rules(rule_set).written
        recorded.series = [series for series in recorded.series if series[0].name not in written]
        engine = replay_hub.load_engine(recorded, progress=lambda part: progress.update(f"Loading: {part:.0%}"))
        timeline = replays.replay(
            rule_set,
            engine,
            replays.ReplayWindow(clock.to_ms(since), clock.to_ms(until), interval),
            appender=engine.appender,
            progress=lambda at, count: progress.update(f"Rule {at + 1} of {count}"),
        )
    finally:
        progress.clear()
    _print_timeline(timeline, since, until, as_json=as_json)
    if timeline.failures:
        raise SystemExit(1)


def _read_recording(
    path: Path, progress: Progress, *, start: str, end: str
) -> tuple[recording.Recording, datetime, datetime]:
    from watchkeeper.store import recording

    recorded = recording.read(path, progress=lambda lines: progress.update(f"Reading: {lines:,} lines"))
    last, start_source = clock.from_ms(recorded.header.to_ms), click.get_current_context().get_parameter_source("start")
    is_default = start_source is click.core.ParameterSource.DEFAULT
    since = clock.from_ms(recorded.header.from_ms) if is_default else times.parse(start, last)
    return recorded, *times.check_order(since, times.parse(end, last))


def _fetch_recording(
    hub: Client, rule_set: rulefile.RuleSet, since: datetime, until: datetime, *, progress: Progress
) -> recording.Recording:
    """Record the series that the rules read, including the lookback before the first evaluation."""
    from watchkeeper.rules import series_read
    from watchkeeper.store import recording

    read = series_read.of_rules(rule_set)
    chunks = hub.recording(
        start=times.seconds(clock.from_ms(clock.to_ms(since) - read.lookback_ms)),
        end=times.seconds(until),
        matches=read.selectors(),
        progress=lambda size: progress.update(f"From the hub: {size / 2**20:.1f} MiB"),
    )
    with tempfile.NamedTemporaryFile(suffix=".wkrec") as file:
        file.writelines(chunks)
        file.flush()
        return recording.read(Path(file.name))


def _print_timeline(timeline: replays.Timeline, since: datetime, until: datetime, *, as_json: bool) -> None:
    fired = timeline.fired
    if as_json:
        span = {"from": since, "to": until, "steps": timeline.steps, "fired": len(fired)}
        options.print_json(wire.to_plain({**span, "episodes": timeline.episodes, "failures": timeline.failures}))
        return
    width = max(20, shutil.get_terminal_size().columns - 62)
    for episode in fired:
        bar = _draw_bar(episode, since, until, width=width)
        assert episode.fired_at is not None
        duration = durations.format_seconds(round(((episode.ended_at or until) - episode.fired_at).total_seconds()))
        labels = episode.labels.without("alertname")
        click.echo(f"{episode.fired_at:%m-%d %H:%M:%S}  {duration:>8}  {episode.alert:<32.32} |{bar}|  {labels}")
    pending = len(timeline.episodes) - len(fired)
    fired_text = f"{len(fired)} alert{'s' * (len(fired) != 1)} would have fired"
    click.echo(f"{fired_text}, {pending} stayed pending, in {timeline.steps:,} evaluations")
    for failure in timeline.failures:
        click.echo(f"{failure.rule} failed: {failure.problem}", err=True)


def _draw_bar(episode: replays.Episode, since: datetime, until: datetime, *, width: int) -> str:
    """The window as a line of text: `.` is pending, `=` is firing."""

    def column_of(at: datetime) -> int:
        return min(width - 1, max(0, int((at - since) / (until - since) * width)))

    start, last = column_of(episode.active_at), column_of(episode.ended_at or until)
    fired = last + 1 if episode.fired_at is None else column_of(episode.fired_at)
    return (" " * start + "." * (fired - start) + "=" * (last + 1 - fired)).ljust(width)
