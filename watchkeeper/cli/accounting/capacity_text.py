"""What `watchkeeper capacity` prints for people: the sentence first, then a picture, then the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from watchkeeper.cli import chart, options
from watchkeeper.client import answers, reading
from watchkeeper.kit import durations
from watchkeeper.readers import table

UNKNOWN = "unknown"
MOST_ROWS = 20
# Lines of a table that are named; --json has more of them.
MOST_NAMED = 5
YEAR_2000 = 946_684_800
# Where nobody asked for so many GPUs.
NOBODY = answers.Spread(jobs=0, mean=None, p50=None, p95=None, max=None)


def forecast(answer: answers.CapacityForecast, *, width: int) -> list[str]:
    return list(_forecast(answer, width))


def _forecast(answer: answers.CapacityForecast, width: int) -> Iterator[str]:
    points, past = answer.forecast, answer.history
    assert past is not None, "a forecast without a reason against it has a history"
    first, last = points[0], points[-1]
    if answer.sentence is not None:
        yield answer.sentence
    highest = max(points, key=lambda point: point.mean)
    yield (
        f"Expected: {first.mean:.4g} at {_short(first.time)}, {last.mean:.4g} at {_short(last.time)}, "
        f"at most {highest.mean:.4g} at {_short(highest.time)}; 80 % lies between o and +."
    )
    yield ""
    recent = [
        (datetime.fromisoformat(point.time).timestamp(), point.value)
        for point in past.recent
        if point.value is not None
    ]
    drawn = [
        (name, [(datetime.fromisoformat(point.time).timestamp(), value(point)) for point in points])
        for name, value in (("expected", attrgetter("mean")), ("low", attrgetter("low")), ("high", attrgetter("high")))
    ]
    yield from chart.draw([*drawn, ("so far", recent)], width=min(width, 140))
    yield ""
    yield from _tested(answer, past)
    yield from (f"Note: {note}." for note in answer.notes or ())
    # What only a table has.
    rows = answer.plain.get("rows", {})
    if rows.get("left_out"):
        yield f"Of {rows['rows']:,} rows {rows['used']:,} are used."
    yield from _problems_of_table(answer, "problems")


def _tested(answer: answers.CapacityForecast, past: answers.PastDemand) -> Iterator[str]:
    tested = answer.backtest
    assert tested is not None, "a forecast without a reason against it has a backtest"
    if tested.wape is None:
        yield "The history is too short to say how wrong this is."
    else:
        better = ""
        if tested.naive_wape:
            gain = 1 - tested.wape / tested.naive_wape
            better = f" ({100 * abs(gain):.0f} % {'better' if gain >= 0 else 'worse'})"
        part = "" if tested.whole_horizon else "of parts of the horizon "
        yield (
            f"Back-test of {tested.origins} forecasts {part}from {_short(tested.since or '')} on: "
            f"error {_share(tested.wape)} of demand, naive forecast "
            f"{_share(tested.naive_wape)}{better}, straight line {_share(tested.straight_line_wape)}; "
            f"{_share(tested.coverage)} of what came lay inside the 80 % interval."
        )
    yield f"Model: {answer.model}; steps of {answer.step} from {_short(past.from_)} on."


def now(answer: answers.CapacityNow) -> list[str]:
    return list(_now(answer))


def _now(answer: answers.CapacityNow) -> Iterator[str]:
    found = answer.standing
    yield (
        f"{found.free_gpus} of {found.in_service_gpus} GPUs in service are free, {found.held_gpus} are held; "
        f"the fleet has {found.gpus}."
    )
    if found.stranded_share:
        largest = found.rooms[-1]
        yield (
            f"{largest.stranded_gpus} of the free ones ({100 * found.stranded_share:.0f} %) lie where no job of "
            f"{largest.gpus} can use them."
        )
    yield ""
    rows = [
        [str(number) for number in (room.gpus, room.jobs, room.usable_gpus, room.stranded_gpus)] for room in found.rooms
    ]
    yield from _table(["GPUs a job", "jobs that fit", "GPUs usable", "GPUs stranded"], rows)
    if answer.waits:
        yield ""
        yield from _table(
            ["GPUs a job", "waiting", "longest wait", "started", "p50 wait", "p95 wait"],
            [_wait_row(one) for one in answer.waits[:MOST_ROWS]],
        )
    for name, gpus, why in found.out_of_service[:MOST_ROWS]:
        yield f"Out of service: {name}, {gpus} GPU{'' if gpus == 1 else 's'}{f': {why}' if why else ''}."
    # A hub knows what is used, a table what it has no place for.
    if "use" in answer.plain:
        yield from _use(answer)
        yield from options.unmapped(answer.unmapped)
    unplaced = answer.plain.get("unplaced", {"jobs": 0})
    if unplaced["jobs"]:
        yield (
            f"{unplaced['jobs']} running jobs with {unplaced['gpus']:g} GPUs have no place on these nodes, and are not "
            "counted as held: the table of nodes lacks some."
        )
    yield from _problems_of_table(answer, "problems")
    yield from _problems_of_table(answer, "node_problems")


def _use(answer: answers.CapacityNow) -> Iterator[str]:
    use = answer.use
    if use.used_gpus is not None and use.held_gpus:
        yield ""
        yield f"Held {use.held_gpus} GPUs, used the worth of {use.used_gpus:.1f} over {use.window}."
    advice = [one for one in answer.rightsizing if one.fit not in ("keep", "unknown")]
    if advice:
        yield ""
        rows = [
            [table.escape_cell(one.name)[:40], str(one.gpus), one.fit, one.profile, one.why]
            for one in advice[:MOST_ROWS]
        ]
        yield from _table(["workload", "GPUs", "would do", "slice", "why"], rows)
    for cut in answer.repartition:
        yield (
            f"{cut.workloads} workloads on {cut.model} fit into slices of {cut.gpus_to_cut} GPUs: "
            f"{cut.frees_gpus} would be free."
        )


def whatif(answer: answers.WhatIf) -> list[str]:
    return list(_whatif(answer))


def _changed(change: str) -> str:
    return f"W{change[1:]}" if change.startswith("without") else f"With {change}"


def _whatif(answer: answers.WhatIf) -> Iterator[str]:
    before, after = answer.before, answer.after
    lost = after.never_fits.jobs - before.never_fits.jobs
    yield (
        f"{_changed(answer.change)}: p95 of waiting {_long(before.wait.p95)} → {_long(after.wait.p95)}, "
        f"utilisation {_share(before.utilisation)} → {_share(after.utilisation)}, "
        f"{before.gpus:g} → {after.gpus:g} GPUs."
        + (f" Jobs that fit now and never would then: {lost:,}; waits are of the others." if lost > 0 else "")
    )
    yield ""
    rows = [_whatif_row("all", answer.recorded.wait, before.wait, after.wait)]
    for shape in dict.fromkeys([*before.wait.by_gpus, *after.wait.by_gpus]):
        sides = [side.wait.by_gpus.get(shape, NOBODY) for side in (answer.recorded, before, after)]
        rows.append(_whatif_row(shape, *sides))
    header = ["GPUs a job", "jobs", "mean recorded", "mean before", "mean after", "p95 before", "p95 after"]
    yield from _table(header, rows)
    for name, side in (("before", before), ("after", after)):
        if side.never_fits.jobs:
            sizes = ", ".join(f"{size:g}" for size in side.never_fits.gpus)
            yield f"Never fits {name}: {side.never_fits.jobs} jobs of {sizes} GPUs; they are in no wait above."
    yield from _kept(answer.plain.get("keep_wait"))
    counts = answer.jobs
    taken = ", ".join(f"{counts[key]} {key.replace('_', ' ')}" for key in counts if key not in ("rows", "jobs"))
    share = f" of {counts['rows']} rows" if "rows" in counts else ""
    yield f"{counts['jobs']} jobs{share} ({answer.layout}{_window_of(answer)}); {taken}."
    yield f"A replay assumes: {'; '.join(answer.assumes)}. Policy: {answer.policy}."
    yield from _problems(answer.problems)
    yield from _problems_of_table(answer, "node_problems")


def _window_of(answer: answers.WhatIf) -> str:
    """The time that the jobs are of; tables of traces count from nothing, and that says nothing."""
    if answer.since < YEAR_2000:
        return ""
    days = (datetime.fromtimestamp(at, UTC) for at in (answer.since, answer.until))
    return ", " + " to ".join(f"{day:%Y-%m-%d %H:%M}Z" for day in days)


def _kept(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    target = _long(found["target_seconds"])
    if found["add_gpus"] is None:
        yield f"No addition up to four times the fleet keeps the p95 of waiting at {target}."
    else:
        days = f"on {_share(found['days_kept'])} of all days it would have been kept"
        yield f"To keep the p95 of waiting at or below {target} add {found['add_gpus']} GPUs; {days}."


def _whatif_row(shape: str, *sides: answers.Waits | answers.Spread) -> list[str]:
    _, before, after = sides
    means = [_long(side.mean) for side in sides]
    return [shape, str(before.jobs), *means, _long(before.p95), _long(after.p95)]


def _wait_row(one: answers.QueueWait) -> list[str]:
    seconds = [_long(one.longest_seconds), _long(one.p50_seconds), _long(one.p95_seconds)]
    return [str(one.gpus), str(one.waiting), seconds[0], str(one.started), *seconds[1:]]


def _problems_of_table(answer: reading.HubAnswer, name: str) -> Iterator[str]:
    if name in answer.plain:
        yield from _problems(reading.read_answer(answers.PlainProblems, answer.plain[name]))


def _problems(found: answers.PlainProblems) -> Iterator[str]:
    if not found.counts:
        return
    yield f"Left out: {', '.join(f'{count} × {kind}' for kind, count in found.counts.items())}."
    yield from (f"  {line}" for line in found.lines[:MOST_NAMED])


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    for row in [header, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _long(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return durations.format_seconds(float(round(seconds))) if seconds >= 1 or not seconds else f"{seconds:.1f}s"


def _short(text: str) -> str:
    return text[:16].replace("T", " ")
