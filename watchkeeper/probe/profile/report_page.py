"""Render a report as a self-contained HTML file: texts, tables and charts, in dark and light mode.

`cli.node.profile` writes it next to the recording. Charts have at most `POINTS` averaged points, so that the size does
not depend on the length.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.report import ProfileReport
from watchkeeper.probe.profile.report_text import METRIC_NAMES, gain_text

POINTS = 480
WIDTH, HEIGHT, LEFT, TOP = 900, 170, 52, 10
STRIP_HEIGHT = 14


class ChartLine(NamedTuple):
    column: str
    name: str
    scale: float = 1.0


CHARTS: tuple[tuple[str, str, tuple[ChartLine, ...]], ...] = (
    (
        "Share of time",
        "%",
        (
            ChartLine("graphics_util", "kernels"),
            ChartLine("sm_util", "SMs"),
            ChartLine("any_tensor_util", "tensor cores"),
            ChartLine("dram_bw_util", "memory"),
        ),
    ),
    ("nvidia-smi values", "%", (ChartLine("gpu_util", "gpu_util"), ChartLine("mem_copy_util", "mem_copy_util"))),
    ("Power", "W", (ChartLine("power_w", "power"),)),
    (
        "PCIe",
        "GB/s",
        (
            ChartLine("pcie_rx_per_sec", "to the GPU", 2**20 / 1e9),
            ChartLine("pcie_tx_per_sec", "from the GPU", 2**20 / 1e9),
        ),
    ),
    ("Host", "cores", (ChartLine("cpu_cores", "cores in use"),)),
    (
        "Disk and network",
        "MB/s",
        (
            ChartLine("read_kbs", "read", 1024 / 1e6),
            ChartLine("write_kbs", "written", 1024 / 1e6),
            ChartLine("net_rx_kbs", "received", 1024 / 1e6),
        ),
    ),
)


def render_page(report: ProfileReport, recording: Recording, *, title: str) -> str:
    template = (resources.files("watchkeeper.packs") / "profile_report.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(title),
        "HEAD": _render_verdict(report),
        "ADVICE": _render_advice(report),
        "EXPECTED": _render_expected(report),
        "GPUS": "".join(_render_gpu(report, recording, position) for position in range(len(report.gpus))),
        "COMPARED": _render_comparison(report),
        "NOTES": "".join(f"<li>{escape(note)}</li>" for note in report.notes) or "<li>none</li>",
    }
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


def _render_verdict(report: ProfileReport) -> str:
    verdict = report.main.verdict
    doubts = "".join(f"<p class=doubt>Lower confidence: {escape(text)}</p>" for text in verdict.doubts)
    return (
        f"<p class=class>{escape(verdict.bound.value)}</p><h1>{escape(report.bottleneck.title.capitalize())}</h1>"
        f"<p>{escape(report.bottleneck.meaning)}.</p><p class=why>{escape(verdict.why)}.</p>{doubts}"
        f"<dl><div><dt>Confidence</dt><dd>{verdict.confidence:.2f}</dd></div>"
        f"<div><dt>Recorded</dt><dd>{report.seconds:.0f} s</dd></div>"
        f"<div><dt>GPUs</dt><dd>{len(report.gpus)} × {escape(report.model.name)}</dd></div></dl>"
    )


def _render_advice(report: ProfileReport) -> str:
    rows = (
        ("Change first", report.bottleneck.first_change),
        ("Largest possible gain", gain_text(report)),
        ("Next", report.bottleneck.next_change),
    )
    table_rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{table_rows}<tr><th>Profile it</th><td><code>{escape(report.tool)}</code></td></tr></table>"


def _render_expected(report: ProfileReport) -> str:
    rows = []
    for row in report.expected:
        value = "unknown" if row.value is None else f"{100 * row.value:.0f} %"
        state = "unknown" if row.is_met is None else "ok" if row.is_met else "off"
        rows.append(
            f"<tr><th>{METRIC_NAMES[row.metric]}</th><td class={state}>{value}</td>"
            f"<td>{100 * row.low:.0f} to {100 * row.high:.0f} %</td><td>{escape(row.remark)}</td></tr>"
        )
    assumed = " (assumed)" if report.kind_is_assumed else ""
    heading = f"<h2>Expected values for {escape(report.kind.replace('_', '-'))}{assumed}</h2>"
    return f"{heading}<table><tr><th></th><th>measured</th><th>expected</th><th></th></tr>{''.join(rows)}</table>"


def _render_gpu(report: ProfileReport, recording: Recording, position: int) -> str:
    gpu = report.gpus[position]
    track = next(candidate for candidate in recording.tracks if candidate.gpu == gpu.gpu)
    tiles = "".join(f"<div><dt>{unit}</dt><dd>{value:,.1f}</dd></div>" for unit, value in gpu.achieved.by_unit())
    charts = "".join(_render_chart(track, name, unit=unit, lines=lines) for name, unit, lines in CHARTS)
    uuid = recording.facts.get(gpu.gpu, {}).get("uuid", "")
    estimates = f"<p class=small>Estimates: share of each unit × its rate on {escape(report.model.name)}.</p>"
    return (
        f"<section><h2>GPU {escape(gpu.gpu)} <small>{escape(str(uuid))}</small></h2>"
        f"{_render_timeline(report, position)}<dl>{tiles}</dl>{estimates}{charts}</section>"
    )


def _render_timeline(report: ProfileReport, position: int) -> str:
    timeline, start = report.gpus[position].timeline, report.started
    end = start + report.seconds
    scale = (WIDTH - LEFT) / max(1e-6, end - start)
    rectangles, names = [], dict.fromkeys(segment.verdict.bound.value for segment in timeline)
    for segment in timeline:
        x, width = LEFT + (segment.since - start) * scale, max(1.0, (segment.until - segment.since) * scale)
        bound = segment.verdict.bound.value
        tooltip = f"{bound}, {segment.since - start:.1f} to {segment.until - start:.1f} s: {segment.verdict.why}"
        attributes = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{STRIP_HEIGHT}"'
        rectangles.append(f'<rect class="{bound}" {attributes}><title>{escape(tooltip)}</title></rect>')
    legend = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names)
    size = f'viewBox="0 0 {WIDTH} {STRIP_HEIGHT}"'
    strip = f'<svg {size} role="img" aria-label="classes over time">{"".join(rectangles)}</svg>'
    return f"{strip}<p class=legend>{legend}</p>"


def _render_chart(track: GpuTrack, name: str, *, unit: str, lines: Sequence[ChartLine]) -> str:
    """One chart, or an empty text if the recording has none of its columns."""
    present = [line for line in lines if track.has(line.column)]
    if not present:
        return ""
    series = [_average_points(track, line) for line in present]
    highest = max((value for points in series for _, value in points), default=0.0)
    y_max = 100.0 if unit == "%" else _round_up(highest)
    start, end = track.times[0], track.times[-1]
    x_scale, y_scale = (WIDTH - LEFT) / max(1e-6, end - start), (HEIGHT - TOP) / y_max
    polylines = []
    for number, points in enumerate(series):
        path = " ".join(f"{LEFT + (at - start) * x_scale:.1f},{HEIGHT - value * y_scale:.1f}" for at, value in points)
        polylines.append(f'<polyline class="line{number}" points="{path}"/>')
    grid = ""
    for value in (0.0, y_max / 2, y_max):
        y = HEIGHT - value * y_scale
        grid += f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        grid += _svg_text(LEFT - 6, y + 4, anchor="end", text=f"{value:g}")
    ticks = "".join(
        _svg_text(LEFT + part * (WIDTH - LEFT), HEIGHT + 16, anchor=anchor, text=f"{part * (end - start):.0f} s")
        for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    legend = "".join(f'<span><i class="line{at}"></i>{escape(line.name)}</span>' for at, line in enumerate(present))
    caption = f"<figcaption>{escape(name)} <small>{unit}</small><span class=legend>{legend}</span></figcaption>"
    attributes = f'viewBox="0 0 {WIDTH} {HEIGHT + 22}" role="img" aria-label="{escape(name)}"'
    return f"<figure>{caption}<svg {attributes}>{grid}{''.join(polylines)}{ticks}</svg></figure>"


def _svg_text(x: float, y: float, *, anchor: str, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _average_points(track: GpuTrack, line: ChartLine) -> list[tuple[float, float]]:
    values = track.numbers[line.column]
    rows_per_point = max(1, -(-len(track) // POINTS))
    points = []
    for at in range(0, len(track), rows_per_point):
        bin_values = present_values(values[at : at + rows_per_point])
        if bin_values:
            points.append((track.times[at], statistics.fmean(bin_values) * line.scale))
    return points


def _round_up(value: float) -> float:
    """The next larger value of 1, 2, 5, 10, 20, 50 …"""
    step = 1e-3
    while True:
        for factor in (1, 2, 5):
            if step * factor >= value:
                return step * factor
        step *= 10


def _render_comparison(report: ProfileReport) -> str:
    if report.baseline_bound is None:
        return ""
    rows = "".join(
        f"<tr><th>{escape(row.column)}</th><td>{row.before:,.1f}</td><td>{row.now:,.1f} {row.unit}</td>"
        f"<td class={row.change.value}>{row.change.value}</td></tr>"
        for row in report.compared_columns
        if row.before is not None and row.now is not None
    )
    heading = f"<h2>Comparison with the baseline <small>{escape(report.baseline_bound)}</small></h2>"
    return f"{heading}<table><tr><th></th><th>before</th><th>now</th><th>beyond noise</th></tr>{rows}</table>"
