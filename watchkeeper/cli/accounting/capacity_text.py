"""The text that `watchkeeper capacity` prints: the answer first, then a chart, then the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from operator import attrgetter

from watchkeeper.cli import options, terminal
from watchkeeper.client import answers, reading
from watchkeeper.kit import durations
from watchkeeper.readers import table

UNKNOWN = "unknown"
MAX_ROWS = 20
# --json has more.
MAX_PROBLEM_LINES = 5
YEAR_2000 = 946_684_800
# For a job size that no job requested.
NO_JOBS = answers.Spread(jobs=0, mean=None, p50=None, p95=None, max=None)


def forecast(answer: answers.CapacityForecast, *, width: int) -> Iterator[str]:
    if answer.learning is not None:
        yield f"{answer.reason}; there is no forecast and no advice until then"
        yield from _problem_lines(answer, "problems")
        return
    points, past = answer.forecast, answer.history
    assert past is not None, "a forecast without a reason against it has a history"
    first, last = points[0], points[-1]
    if answer.sentence is not None:
        yield answer.sentence
    highest = max(points, key=lambda point: point.mean)
    yield (
        f"Expected: {first.mean:.4g} at {_format_minute(first.time)}, {last.mean:.4g} at {_format_minute(last.time)}, "
        f"maximum {highest.mean:.4g} at {_format_minute(highest.time)}; the 80 % interval is between o and +."
    )
    yield ""
    series = [
        (name, [(datetime.fromisoformat(point.time).timestamp(), value(point)) for point in points])
        for name, value in (("expected", attrgetter("mean")), ("low", attrgetter("low")), ("high", attrgetter("high")))
    ]
    measured = ((point.time, point.value) for point in past.recent if point.value is not None)
    recent = [(datetime.fromisoformat(time).timestamp(), value) for time, value in measured]
    yield from terminal.draw_chart([*series, ("so far", recent)], width=min(width, 140))
    yield ""
    yield from _backtest_lines(answer, past)
    yield from (f"Note: {note}." for note in answer.notes or ())
    # Only tables have rows.
    rows = answer.plain.get("rows", {})
    if rows.get("left_out"):
        yield f"{rows['used']:,} of {rows['rows']:,} rows are used."
    yield from _problem_lines(answer, "problems")


def _backtest_lines(answer: answers.CapacityForecast, past: answers.PastDemand) -> Iterator[str]:
    backtest = answer.backtest
    assert backtest is not None, "a forecast without a reason against it has a backtest"
    if backtest.wape is None:
        yield "The history is too short for a back-test: the error of this forecast is unknown."
    else:
        comparison = ""
        if backtest.naive_wape:
            gain = 1 - backtest.wape / backtest.naive_wape
            comparison = f" ({100 * abs(gain):.0f} % {'better' if gain >= 0 else 'worse'})"
        part = "" if backtest.whole_horizon else "over part of the horizon "
        yield (
            f"Back-test of {backtest.origins} forecasts {part}since {_format_minute(backtest.since or '')}: "
            f"error {_format_percent(backtest.wape)} of demand, naive forecast "
            f"{_format_percent(backtest.naive_wape)}{comparison}, straight line "
            f"{_format_percent(backtest.straight_line_wape)}; "
            f"{_format_percent(backtest.coverage)} of actual values were inside the 80 % interval."
        )
    yield f"Model: {answer.model}; steps of {answer.step} since {_format_minute(past.from_)}."


def now(answer: answers.CapacityNow) -> Iterator[str]:
    capacity = answer.standing
    yield (
        f"{capacity.free_gpus} of {capacity.in_service_gpus} GPUs in service are free, "
        f"{capacity.allocated_gpus} are allocated; the fleet has {capacity.gpus}."
    )
    if capacity.in_service_gpus != capacity.gpus:
        yield from options.gpu_lines(answer)
    if capacity.stranded_share:
        largest = capacity.shapes[-1]
        yield (
            f"{largest.stranded_gpus} free GPUs ({100 * capacity.stranded_share:.0f} %) are stranded: no job of "
            f"{largest.gpus} GPUs can use them."
        )
    yield ""
    rows = [
        [str(number) for number in (fit.gpus, fit.jobs, fit.usable_gpus, fit.stranded_gpus)] for fit in capacity.shapes
    ]
    yield from terminal.format_lines(["GPUs per job", "jobs that fit", "usable GPUs", "stranded GPUs"], rows)
    if answer.waits:
        yield ""
        rows = []
        for wait in answer.waits[:MAX_ROWS]:
            longest, p50, p95 = map(_format_seconds, (wait.longest_seconds, wait.p50_seconds, wait.p95_seconds))
            rows.append([str(wait.gpus), str(wait.waiting), longest, str(wait.started), p50, p95])
        header = ["GPUs per job", "waiting", "longest wait", "started", "p50 wait", "p95 wait"]
        yield from terminal.format_lines(header, rows)
    for name, gpus, why in capacity.out_of_service[:MAX_ROWS]:
        yield f"Out of service: {name}, {gpus} GPU{'' if gpus == 1 else 's'}{f': {why}' if why else ''}."
    # Only a hub reports use; only tables report jobs without a node.
    if "use" in answer.plain:
        yield from _use_lines(answer)
        yield from options.unmapped_lines(answer.unmapped)
    unplaced = answer.plain.get("unplaced", {"jobs": 0})
    if unplaced["jobs"]:
        yield (
            f"{unplaced['jobs']} running jobs with {unplaced['gpus']:g} GPUs do not fit on these nodes and are not "
            "counted as allocated: the table of nodes is incomplete."
        )
    yield from _problem_lines(answer, "problems")
    yield from _problem_lines(answer, "node_problems")


def _use_lines(answer: answers.CapacityNow) -> Iterator[str]:
    use = answer.use
    if use.used_gpus is not None and use.held_gpus:
        yield ""
        yield f"{use.held_gpus} GPUs are allocated; mean use over {use.window} equals {use.used_gpus:.1f} busy GPUs."
    changes = [workload for workload in answer.rightsizing if workload.fit not in ("keep", "unknown")]
    if changes:
        yield ""
        rows = [
            [table.escape_cell(change.name)[:40], str(change.gpus), change.fit, change.profile, change.why]
            for change in changes[:MAX_ROWS]
        ]
        yield from terminal.format_lines(["workload", "GPUs", "advice", "MIG profile", "reason"], rows)
    for layout in answer.repartition:
        yield (
            f"{layout.workloads} workloads on {layout.model} fit into MIG instances of {layout.gpus_to_cut} GPUs: "
            f"this frees {layout.frees_gpus} GPUs."
        )


def whatif(answer: answers.WhatIf) -> Iterator[str]:
    before, after = answer.before, answer.after
    newly_unfit = after.never_fits.jobs - before.never_fits.jobs
    unfit = f" {newly_unfit:,} jobs that fit before never fit after; the waits exclude them." if newly_unfit > 0 else ""
    yield (
        f"With {answer.change}: p95 wait {_format_seconds(before.wait.p95)} → {_format_seconds(after.wait.p95)}, "
        f"utilisation {_format_percent(before.utilisation)} → {_format_percent(after.utilisation)}, "
        f"{before.gpus:g} → {after.gpus:g} GPUs.{unfit}"
    )
    yield ""
    rows = [_whatif_row("all", answer.recorded.wait, before.wait, after.wait)]
    for shape in dict.fromkeys([*before.wait.by_gpus, *after.wait.by_gpus]):
        spreads = [run.wait.by_gpus.get(shape, NO_JOBS) for run in (answer.recorded, before, after)]
        rows.append(_whatif_row(shape, *spreads))
    header = ["GPUs per job", "jobs", "mean recorded", "mean before", "mean after", "p95 before", "p95 after"]
    yield from terminal.format_lines(header, rows)
    for name, run in (("before", before), ("after", after)):
        if run.never_fits.jobs:
            sizes = ", ".join(f"{size:g}" for size in run.never_fits.gpus)
            yield f"Never fits {name}: {run.never_fits.jobs} jobs of {sizes} GPUs; the waits above exclude them."
    if addition := answer.plain.get("keep_wait"):
        target = _format_seconds(addition["target_seconds"])
        if addition["add_gpus"] is None:
            yield f"No addition up to four times the fleet keeps the p95 wait at or below {target}."
        else:
            days = f"they would have kept it on {_format_percent(addition['days_kept'])} of days"
            yield f"To keep the p95 wait at or below {target}, add {addition['add_gpus']} GPUs; {days}."
    counts = answer.jobs
    dropped = ", ".join(f"{counts[key]} {key.replace('_', ' ')}" for key in counts if key not in ("rows", "jobs"))
    share = f" of {counts['rows']} rows" if "rows" in counts else ""
    yield f"{counts['jobs']} jobs{share} ({answer.layout}{_format_window(answer)}); {dropped}."
    yield f"Assumptions: {'; '.join(answer.assumes)}. Policy: {answer.policy}."
    yield from _problem_lines(answer, "problems")
    yield from _problem_lines(answer, "node_problems")


def _format_window(answer: answers.WhatIf) -> str:
    """The time range of the jobs; empty for traces, whose times count from zero."""
    if answer.since < YEAR_2000:
        return ""
    days = (datetime.fromtimestamp(at, UTC) for at in (answer.since, answer.until))
    return ", " + " to ".join(f"{day:%Y-%m-%d %H:%M}Z" for day in days)


def _whatif_row(shape: str, *spreads: answers.Waits | answers.Spread) -> list[str]:
    _, before, after = spreads
    means = [_format_seconds(spread.mean) for spread in spreads]
    return [shape, str(before.jobs), *means, _format_seconds(before.p95), _format_seconds(after.p95)]


def _problem_lines(answer: reading.HubAnswer, name: str) -> Iterator[str]:
    """What could not be read; only tables have problems."""
    if name in answer.plain:
        problems = reading.read_answer(answers.PlainProblems, answer.plain[name])
        if problems.counts:
            yield f"Dropped: {', '.join(f'{count} × {kind}' for kind, count in problems.counts.items())}."
            yield from (f"  {line}" for line in problems.lines[:MAX_PROBLEM_LINES])


def _format_percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return durations.format_seconds(float(round(seconds))) if seconds >= 1 or not seconds else f"{seconds:.1f}s"


def _format_minute(text: str) -> str:
    return text[:16].replace("T", " ")
