"""`watchkeeper profile`: record a workload and find its bottleneck; `profile classify` reads a recording."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from watchkeeper.catalogue.gpu_models import gpu_models
from watchkeeper.cli.options import EXIT_UNKNOWN, Duration, FullHelpGroup, as_json, print_json, print_table
from watchkeeper.cli.terminal import Progress
from watchkeeper.probe.profile import recorder, recording, report, report_page, report_text, runner, segments, verdict

RECORDING = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
# The bottleneck on the progress line is that of the last seconds.
RECENT_SECONDS = 5.0
KIND = click.Choice(["training", "inference", "multi_gpu"])
WORKLOAD_KEY = "watchkeeper.profile.command"


class ProfileGroup(FullHelpGroup):
    """Everything after `--` is the command line of the workload."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            separator = args.index("--")
            ctx.meta[WORKLOAD_KEY] = args[separator + 1 :]
            args = args[:separator]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(f"write the workload after `--`: watchkeeper profile -- {shlex.join(args)}")
        return super().resolve_command(ctx, args)


@click.group("profile", cls=ProfileGroup, invoke_without_command=True, subcommand_metavar="[-- CMD… | classify FILE]")
@click.option("--pid", type=click.IntRange(1), help="Record this running process and its child processes.")
@click.option("--for", "seconds", type=Duration(), help="Record this long, for example 60s; CMD keeps running.")
@click.option("--rate", type=click.FloatRange(0.1, 10), default=10.0, help="Samples per second.")
@click.option("-i", "--gpus", metavar="GPUS", help="Record only these GPUs, for example 0,2-3.  [default: all]")
@click.option("--kind", type=KIND, help="Kind of workload.")
@click.option("--baseline", type=RECORDING, help="Earlier recording (CSV or Parquet) to compare with.")
@click.option("--output", type=FOLDER, help="Folder for recording and report.  [default: profile-DATE-TIME]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the output of CMD then goes to standard error.")
@click.pass_context
def command(ctx: click.Context, /, pid: int | None, seconds: float | None, as_json: bool, **params: Any) -> None:
    """Record GPUs while a workload runs, then report its bottleneck and what to change first.

    watchkeeper profile -- python train.py     run a program; it keeps its input, output, signals and exit code

    watchkeeper profile --pid 4711 --for 60s   record a running program

    watchkeeper profile --for 60s              record all workloads on this node's GPUs

    The report goes to standard error; recording and report page go to a folder. Nothing on the GPU is changed. Exit
    code: that of CMD; 3 if there is no GPU to record.
    """
    workload = ctx.meta.get(WORKLOAD_KEY)
    if ctx.invoked_subcommand is not None:
        if workload is not None:
            raise click.UsageError("use either `classify FILE` or a workload after `--`")
        return
    if workload == []:
        raise click.UsageError("no program after `--`")
    if workload is not None and pid is not None:
        raise click.UsageError("use either a workload after `--` or --pid")
    if workload is None and pid is None and seconds is None:
        raise click.UsageError("nothing to record: use `-- CMD`, `--pid PID`, or `--for 60s` for all workloads here")
    if params["baseline"] is not None:
        params["baseline"] = recording.read_recording(params["baseline"])
    gpus, rate = _parse_indices(params.pop("gpus")), params.pop("rate")
    request = runner.RecordingRequest(1 / rate, workload, pid, seconds, gpus, not as_json)
    try:
        recorded = runner.run(request, RecordingStatus(Progress()))
    except recorder.NoGpuError as error:
        click.echo(f"watchkeeper: {error}", err=True)
        sys.exit(EXIT_UNKNOWN)
    _print_report(recorded, workload, as_json=as_json, **params)
    sys.exit(runner.wait_for_exit(recorded))


class RecordingStatus:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._updated_at = -1.0
        self._bound = "…"

    def __call__(self, seconds: float, running: recorder.Recorder) -> None:
        if seconds - self._updated_at < 1.0:
            return
        self._updated_at = seconds
        recent = running.recent(RECENT_SECONDS)
        tracks = [track for track in recent.tracks if len(track) >= 5]
        if tracks:
            model = (verdict.find_model(recent.model) if recent.model else None) or verdict.default_model()
            judged = [segments.judge_whole(track, model) for track in tracks]
            self._bound = max(judged, key=lambda segment: segment.features.rhythm.mean).verdict.bound.value
        self._progress.update(f"recording {seconds:5.0f} s   {self._bound}")


def _print_report(
    recorded: runner.RecordedWorkload, workload: list[str] | None, *, output: Path | None, as_json: bool, **about: Any
) -> None:
    Progress().clear()
    for problem in recorded.problems:
        click.echo(f"watchkeeper: {problem}", err=True)
    if not any(len(track) for track in recorded.recording.tracks):
        notes = "; ".join(recorded.recording.notes) or "the workload ended before the first sample"
        click.echo(f"watchkeeper: no data: {notes}", err=True)
        return
    used_gpus = {str(index) for index in recorded.used_gpus}
    profile_report = report.build_report(recorded.recording, used_gpus=used_gpus, command=workload, **about)
    folder = output or Path(time.strftime("profile-%Y%m%d-%H%M%S"))
    files = _write_files(profile_report, recorded.recording, folder=folder, workload=workload)
    if as_json:
        print_json({**report.report_as_json(profile_report), "files": [str(file) for file in files]})
        return
    click.echo("", err=True)
    for line in report_text.report_lines(profile_report):
        click.echo(line, err=True)
    file_format = "Parquet" if files[0].suffix == ".parquet" else "CSV, because pyarrow is not installed"
    click.echo(f"Recording ({file_format}): {files[0]}\nReport: {files[1]}", err=True)


def _write_files(
    profile_report: report.ProfileReport, recorded: recording.Recording, *, folder: Path, workload: list[str] | None
) -> tuple[Path, Path, Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        saved = recording.save(recorded, folder)
        title = f"{shlex.join(workload) if workload else 'profile'} · {time.strftime('%Y-%m-%d %H:%M')}"
        page, json_file = folder / "report.html", folder / "report.json"
        page.write_text(report_page.render_page(profile_report, recorded, title=title), encoding="utf-8")
        plain = report.report_as_json(profile_report)
        json_file.write_text(json.dumps(plain, indent=2, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        problem = f"{folder}: cannot be written: {error.strerror}"
        raise click.ClickException(f"{problem}; choose another folder with --output") from error
    return saved, page, json_file


def _parse_indices(text: str | None) -> list[int]:
    if text is None:
        return []
    indices: list[int] = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise click.UsageError(f"-i {text}: write indices such as 0 or 0,2-3")
        indices += range(int(low), int(high or low) + 1)
    return indices


@command.command("classify")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--model", "model_name", metavar="NAME", help="GPU model, if the memory clock does not identify it.")
@click.option("--kind", type=KIND, help="Compare each segment with the expected values of this kind of workload.")
@as_json
def classify(file: Path, model_name: str | None, kind: str | None, as_json: bool) -> None:
    """Find the bottleneck of each segment of the recording FILE (CSV or Parquet, - for stdin).

    Each label is a segment; rows labelled `gap` belong to none. Without labels, segments end where values change.
    """
    model = None if model_name is None else verdict.find_model(model_name)
    if model_name is not None and model is None:
        raise click.UsageError(f"--model {model_name}: unknown model; known models are {', '.join(gpu_models())}")
    is_stdin = str(file) == "-"
    recorded = recording.read_text(sys.stdin.read(), where="stdin") if is_stdin else recording.read_recording(file)
    judged = segments.judge_recording(recorded, model)
    if as_json:
        print_json(as_plain(recorded, judged, kind))
        return
    for note in recorded.notes:
        click.echo(f"note: {note}", err=True)
    is_many = len(recorded.tracks) > 1
    _print_segments(judged, is_many=is_many)
    if kind is None:
        return
    for segment in judged.segments:
        gpu = f" of GPU {segment.gpu}" if is_many else ""
        click.echo(f"\nExpected values for {kind.replace('_', '-')} in segment {segment.label}{gpu}:")
        expected = report.segment_expectations(recorded, segment, judged.model, kind)
        click.echo("\n".join(report_text.expectation_rows(expected)))


def as_plain(
    recorded: recording.Recording, judged: segments.JudgedRecording, kind: str | None = None
) -> dict[str, Any]:
    """The documented shape of `profile classify --json`; keys are added, never renamed."""
    start = min(track.times[0] for track in recorded.tracks)

    def expected(segment: segments.Segment) -> dict[str, Any]:
        if kind is None:
            return {}
        rows = report.segment_expectations(recorded, segment, judged.model, kind)
        return {"kind": kind, "expected": report.expectations_as_json(rows)}

    return {
        "segments": [report.segment_as_json(segment, start) | expected(segment) for segment in judged.segments],
        "model": judged.model.name,
        "model_is_assumed": not judged.model_is_known,
        "samples_between_segments": judged.unassigned_rows,
        "notes": list(recorded.notes),
    }


def _print_segments(judged: segments.JudgedRecording, *, is_many: bool) -> None:
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
    print_table([*(["GPU"] if is_many else []), "SEGMENT", "CLASS", "CONFIDENCE", "REASON"], rows)
    for segment in judged.segments:
        for text in segment.verdict.doubts:
            if "halves" in text:
                click.echo(f"{segment.label}: {text}")
    for text in dict.fromkeys(
        text for segment in judged.segments for text in segment.verdict.doubts if "halves" not in text
    ):
        click.echo(f"less certain: {text}")
    assumed = "" if judged.model_is_known else " (assumed: the file names no model; set it with --model NAME)"
    between = f" {judged.unassigned_rows} rows are between segments." if judged.unassigned_rows else ""
    click.echo(f"Ceilings of {judged.model.name}{assumed}.{between}")
