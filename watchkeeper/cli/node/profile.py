"""`watchkeeper profile`: record a workload and say what it is bound by; `profile classify` judges a recording."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import groups
from watchkeeper.cli.options import print_json, print_table
from watchkeeper.cli.progress import Progress
from watchkeeper.kit import durations
from watchkeeper.probe.profile import (
    limits,
    recorder,
    recording,
    report,
    report_page,
    report_text,
    runner,
    segments,
)

CANNOT_TELL = 3
# The class that is shown while a workload runs is that of the last seconds.
SHOWN_SECONDS = 5.0
COMMAND = "watchkeeper.profile.command"


class ProfileGroup(groups.FullHelpGroup):
    """Everything after `--` is the workload, whatever it is called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"write the workload after `--`: watchkeeper profile -- {shlex.join(args)}")
        return super().resolve_command(ctx, args)


class DurationType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return durations.parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _model(name: str | None) -> limits.GpuCeilings | None:
    if name is None:
        return None
    found = limits.find_model(name)
    if found is None:
        known = ", ".join(model.name for model in limits.gpu_models())
        raise click.UsageError(f"--model {name}: known models are {known}")
    return found


@click.group("profile", cls=ProfileGroup, invoke_without_command=True, subcommand_metavar="[-- CMD… | classify FILE]")
@click.option("--pid", type=click.IntRange(1), help="A program that runs already, with all that it has started.")
@click.option("--for", "seconds", type=DurationType(), metavar="TIME", help="Record so long, such as 60s; CMD goes on.")
@click.option("--rate", type=click.FloatRange(0.1, 10), default=10.0, help="Samples a second.")
@click.option("-i", "--gpus", metavar="GPUS", help="Indices, such as 0,2-3. All by default.")
@click.option("--kind", type=click.Choice(["training", "inference", "multi_gpu"]), help="What to expect of it.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="An earlier recording (CSV or Parquet) to compare with.",
)
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Where recording and report go.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; what CMD prints then goes to the standard error.")
@click.pass_context
def command(
    ctx: click.Context,
    pid: int | None,
    seconds: float | None,
    rate: float,
    gpus: str | None,
    kind: str | None,
    baseline: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Record GPUs while a workload runs, then say what it is bound by and what to change first.

    watchkeeper profile -- python train.py     a program, which keeps its input, output, signals and exit code

    watchkeeper profile --pid 4711 --for 60s   a program that runs already

    watchkeeper profile --for 60s              whatever this node's GPUs do

    The report goes to the standard error, recording and page into a folder. Nothing on the GPU is changed. Exit code:
    that of CMD; 3 where there is no GPU to record.
    """
    words = ctx.meta.get(COMMAND)
    if ctx.invoked_subcommand is not None:
        if words is not None:
            raise click.UsageError("either `classify FILE` or a workload after `--`")
        return
    if words == []:
        raise click.UsageError("there is no program after `--`")
    if words is not None and pid is not None:
        raise click.UsageError("either a workload after `--` or --pid")
    if words is None and pid is None and seconds is None:
        raise click.UsageError("what is to be recorded? `-- CMD`, `--pid PID`, or `--for 60s` for whatever runs here")
    earlier = None if baseline is None else recording.read_recording(baseline)
    wish = runner.RecordingRequest(1 / rate, words, pid, seconds, _indices(gpus), not as_json)
    try:
        recorded = runner.run(wish, RecordingStatus(Progress()))
    except recorder.NoGpuError as error:
        click.echo(f"watchkeeper: {error}", err=True)
        sys.exit(CANNOT_TELL)
    _tell(recorded, words, kind=kind, earlier=earlier, output=output, as_json=as_json)
    sys.exit(runner.wait_for_exit(recorded))


class RecordingStatus:
    """One line while it runs: how long, and what it looks like now."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told_at = -1.0
        self._now = "…"

    def __call__(self, seconds: float, running: recorder.Recorder) -> None:
        if seconds - self._told_at < 1.0:
            return
        self._told_at = seconds
        recent = running.recent(SHOWN_SECONDS)
        tracks = [track for track in recent.tracks if len(track) >= 5]
        if tracks:
            model = (limits.find_model(recent.model) if recent.model else None) or limits.default_model()
            judged = [segments.judge_whole(track, model) for track in tracks]
            self._now = max(judged, key=lambda found: found.features.rhythm.mean).verdict.bound.value
        self._progress.update(f"recording {seconds:5.0f} s   {self._now}")


def _tell(
    recorded: runner.RecordedWorkload,
    words: list[str] | None,
    *,
    kind: str | None,
    earlier: recording.Recording | None,
    output: Path | None,
    as_json: bool,
) -> None:
    Progress().clear()
    for problem in recorded.problems:
        click.echo(f"watchkeeper: {problem}", err=True)
    if not any(len(track) for track in recorded.recording.tracks):
        notes = "; ".join(recorded.recording.notes) or "it ended before anything was recorded"
        click.echo(f"watchkeeper: nothing to judge: {notes}", err=True)
        return
    used = {str(index) for index in recorded.used_gpus}
    built = report.build_report(recorded.recording, used_gpus=used, kind=kind, command=words, baseline=earlier)
    folder = output or Path(time.strftime("profile-%Y%m%d-%H%M%S"))
    files = _write(built, recorded.recording, folder=folder, words=words)
    if as_json:
        print_json({**report.report_as_json(built), "files": [str(file) for file in files]})
        return
    click.echo("", err=True)
    for line in report_text.report_lines(built):
        click.echo(line, err=True)
    form = "Parquet" if files[0].suffix == ".parquet" else "CSV, because pyarrow is not installed"
    click.echo(f"Recording ({form}): {files[0]}\nPage: {files[1]}", err=True)


def _write(
    built: report.ProfileReport, recorded: recording.Recording, *, folder: Path, words: list[str] | None
) -> tuple[Path, Path, Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        saved = recording.save(recorded, folder)
        title = f"{shlex.join(words) if words else 'profile'} · {time.strftime('%Y-%m-%d %H:%M')}"
        page, plain = folder / "report.html", folder / "report.json"
        page.write_text(report_page.render_page(built, recorded, title=title), encoding="utf-8")
        plain.write_text(json.dumps(report.report_as_json(built), indent=2, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"{folder}: cannot be written: {error.strerror}; --output names another folder"
        ) from error
    return saved, page, plain


def _indices(text: str | None) -> list[int]:
    if text is None:
        return []
    found: list[int] = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise click.UsageError(f"-i {text}: write indices such as 0 or 0,2-3")
        found += range(int(low), int(high or low) + 1)
    return found


@command.command("classify")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--model", "model_name", metavar="NAME", help="GPU model, if the memory clock does not tell.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")
def classify(file: Path, model_name: str | None, as_json: bool) -> None:
    """Judge a recording: what each segment of FILE (CSV or Parquet, - for stdin) is bound by.

    Each label is a segment, rows labelled `gap` belong to none; without labels the file is cut where numbers change.
    """
    model = _model(model_name)
    is_stdin = str(file) == "-"
    read = recording.read_text(sys.stdin.read(), where="stdin") if is_stdin else recording.read_recording(file)
    judged = segments.judge_recording(read, model)
    if as_json:
        print_json(as_plain(read, judged))
        return
    for note in read.notes:
        click.echo(f"note: {note}", err=True)
    _print(judged, is_many=len(read.tracks) > 1)


def as_plain(read: recording.Recording, judged: segments.JudgedRecording) -> dict[str, Any]:
    """The documented shape of `profile classify --json`; keys are added, never renamed."""
    start = min(track.times[0] for track in read.tracks)
    return {
        "segments": [report.segment_as_json(segment, start) for segment in judged.segments],
        "model": judged.model.name,
        "model_is_assumed": not judged.model_is_known,
        "samples_between_segments": judged.unassigned_rows,
        "notes": list(read.notes),
    }


def _print(judged: segments.JudgedRecording, *, is_many: bool) -> None:
    rows = [
        [
            *([segment.gpu] if is_many else []),
            segment.label,
            verdict.bound.value,
            f"{verdict.confidence:.2f}",
            verdict.why,
        ]
        for segment in judged.segments
        for verdict in (segment.verdict,)
    ]
    print_table([*(["GPU"] if is_many else []), "SEGMENT", "CLASS", "SURE", "WHY"], rows)
    for segment in judged.segments:
        for text in segment.verdict.doubts:
            if "halves" in text:
                click.echo(f"{segment.label}: {text}")
    for text in dict.fromkeys(
        text for segment in judged.segments for text in segment.verdict.doubts if "halves" not in text
    ):
        click.echo(f"less sure: {text}")
    assumed = "" if judged.model_is_known else " (assumed: the file does not say; --model NAME)"
    between = f" {judged.unassigned_rows} rows lie between segments." if judged.unassigned_rows else ""
    click.echo(f"Ceilings of {judged.model.name}{assumed}.{between}")
