"""A report as one HTML file that needs nothing else: words, tables and charts, dark or light as the reader has it.

`cli.node.profile` writes it beside the recording. Charts are means over at most `POINTS` stretches of time, so that
an hour is as small as a minute.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from watchkeeper.probe.profile.recording import GpuTrack, Recording, present_values
from watchkeeper.probe.profile.report import ProfileReport
from watchkeeper.probe.profile.report_text import NAMES, gain

POINTS = 480
WIDTH, HEIGHT, LEFT, TOP = 900, 170, 52, 10
BAND = 14


class ChartLine(NamedTuple):
    column: str
    name: str
    scale: float = 1.0


CHARTS: tuple[tuple[str, str, tuple[ChartLine, ...]], ...] = (
    (
        "Share of time",
        "%",
        (
            ChartLine("graphics_util", "kernels run"),
            ChartLine("sm_util", "SMs"),
            ChartLine("any_tensor_util", "tensor cores"),
            ChartLine("dram_bw_util", "memory"),
        ),
    ),
    ("As nvidia-smi shows it", "%", (ChartLine("gpu_util", "gpu_util"), ChartLine("mem_copy_util", "mem_copy_util"))),
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
    """The whole file."""
    template = (resources.files("watchkeeper.packs") / "profile_report.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(title),
        "HEAD": _head(report),
        "ADVICE": _advice(report),
        "EXPECTED": _expected(report),
        "GPUS": "".join(_gpu(report, recording, place) for place in range(len(report.gpus))),
        "COMPARED": _compared(report),
        "NOTES": "".join(f"<li>{escape(note)}</li>" for note in report.notes) or "<li>none</li>",
    }
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


def _head(report: ProfileReport) -> str:
    verdict = report.main.verdict
    doubts = "".join(f"<p class=doubt>Less sure: {escape(text)}</p>" for text in verdict.unsure)
    return (
        f"<p class=class>{escape(verdict.bound.value)}</p><h1>{escape(report.words.title.capitalize())}</h1>"
        f"<p>{escape(report.words.meaning)}.</p><p class=why>{escape(verdict.why)}.</p>{doubts}"
        f"<dl><div><dt>Confidence</dt><dd>{verdict.confidence:.2f}</dd></div>"
        f"<div><dt>Recorded</dt><dd>{report.seconds:.0f} s</dd></div>"
        f"<div><dt>GPUs</dt><dd>{len(report.gpus)} × {escape(report.model.name)}</dd></div></dl>"
    )


def _advice(report: ProfileReport) -> str:
    rows = (
        ("Change first", report.words.first_change),
        ("Could give at most", gain(report)),
        ("Then", report.words.then),
    )
    listed = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{listed}<tr><th>To see where</th><td><code>{escape(report.tool)}</code></td></tr></table>"


def _expected(report: ProfileReport) -> str:
    rows = []
    for row in report.expected:
        seen = "unknown" if row.seen is None else f"{100 * row.seen:.0f} %"
        state = "unknown" if row.is_met is None else "ok" if row.is_met else "off"
        rows.append(
            f"<tr><th>{NAMES[row.metric]}</th><td class={state}>{seen}</td>"
            f"<td>{100 * row.low:.0f} to {100 * row.high:.0f} %</td><td>{escape(row.remark)}</td></tr>"
        )
    assumed = " (assumed)" if report.kind_is_assumed else ""
    head = f"<h2>What {escape(report.kind.replace('_', '-'))}{assumed} should look like</h2>"
    return f"{head}<table><tr><th></th><th>seen</th><th>expected</th><th></th></tr>{''.join(rows)}</table>"


def _gpu(report: ProfileReport, recording: Recording, place: int) -> str:
    gpu = report.gpus[place]
    track = next(found for found in recording.tracks if found.gpu == gpu.gpu)
    rate = gpu.achieved
    rates = (
        ("TFLOP/s, tensor cores if 16-bit", rate.tensor_tflops),
        ("TFLOP/s fp32", rate.fp32_tflops),
        ("TFLOP/s fp64", rate.fp64_tflops),
        ("GB/s memory", rate.memory_gb),
        ("GB/s PCIe", rate.pcie_gb),
    )
    tiles = "".join(f"<div><dt>{unit}</dt><dd>{value:,.1f}</dd></div>" for unit, value in rates if value is not None)
    charts = "".join(_chart(track, name, unit=unit, lines=lines) for name, unit, lines in CHARTS)
    name = recording.facts.get(gpu.gpu, {}).get("uuid", "")
    estimates = f"<p class=small>Estimates: share of each unit × its figure for {escape(report.model.name)}.</p>"
    return (
        f"<section><h2>GPU {escape(gpu.gpu)} <small>{escape(str(name))}</small></h2>{_bands(report, place)}"
        f"<dl>{tiles}</dl>{estimates}{charts}</section>"
    )


def _bands(report: ProfileReport, place: int) -> str:
    """The classes over time, as a strip above the charts."""
    timeline, start = report.gpus[place].timeline, report.started
    end = start + report.seconds
    scale = (WIDTH - LEFT) / max(1e-6, end - start)
    boxes, names = [], dict.fromkeys(segment.verdict.bound.value for segment in timeline)
    for segment in timeline:
        x, width = LEFT + (segment.since - start) * scale, max(1.0, (segment.until - segment.since) * scale)
        bound = segment.verdict.bound.value
        told = f"{bound}, {segment.since - start:.1f} to {segment.until - start:.1f} s: {segment.verdict.why}"
        place_of = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{BAND}"'
        boxes.append(f'<rect class="{bound}" {place_of}><title>{escape(told)}</title></rect>')
    legend = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names)
    strip = f'<svg viewBox="0 0 {WIDTH} {BAND}" role="img" aria-label="classes over time">{"".join(boxes)}</svg>'
    return f"{strip}<p class=legend>{legend}</p>"


def _chart(track: GpuTrack, name: str, *, unit: str, lines: Sequence[ChartLine]) -> str:
    """One chart, or nothing where the recording has none of its columns."""
    present = [line for line in lines if track.has(line.column)]
    if not present:
        return ""
    series = [_points(track, line) for line in present]
    highest = max((value for points in series for _, value in points), default=0.0)
    top = 100.0 if unit == "%" else _round_up(highest)
    start, end = track.times[0], track.times[-1]
    x_scale, y_scale = (WIDTH - LEFT) / max(1e-6, end - start), (HEIGHT - TOP) / top
    drawn = []
    for number, points in enumerate(series):
        path = " ".join(f"{LEFT + (at - start) * x_scale:.1f},{HEIGHT - value * y_scale:.1f}" for at, value in points)
        drawn.append(f'<polyline class="line{number}" points="{path}"/>')
    grid = "".join(_grid_line(part * top, HEIGHT - part * top * y_scale) for part in (0, 0.5, 1))
    ticks = "".join(
        _text(LEFT + part * (WIDTH - LEFT), HEIGHT + 16, anchor=anchor, text=f"{part * (end - start):.0f} s")
        for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    legend = "".join(f'<span><i class="line{at}"></i>{escape(line.name)}</span>' for at, line in enumerate(present))
    caption = f"<figcaption>{escape(name)} <small>{unit}</small><span class=legend>{legend}</span></figcaption>"
    box = f'viewBox="0 0 {WIDTH} {HEIGHT + 22}" role="img" aria-label="{escape(name)}"'
    return f"<figure>{caption}<svg {box}>{grid}{''.join(drawn)}{ticks}</svg></figure>"


def _grid_line(value: float, y: float) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(LEFT - 6, y + 4, anchor="end", text=f"{value:g}")


def _text(x: float, y: float, *, anchor: str, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _points(track: GpuTrack, line: ChartLine) -> list[tuple[float, float]]:
    values = track.numbers[line.column]
    size = max(1, -(-len(track) // POINTS))
    found = []
    for at in range(0, len(track), size):
        told = present_values(values[at : at + size])
        if told:
            found.append((track.times[at], statistics.fmean(told) * line.scale))
    return found


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 and their tens: a scale that people can read."""
    step = 1e-3
    while True:
        for factor in (1, 2, 5):
            if step * factor >= value:
                return step * factor
        step *= 10


def _compared(report: ProfileReport) -> str:
    if report.baseline_bound is None:
        return ""
    rows = "".join(
        f"<tr><th>{escape(row.column)}</th><td>{row.before:,.1f}</td><td>{row.now:,.1f} {row.unit}</td>"
        f"<td class={row.change.value}>{row.change.value}</td></tr>"
        for row in report.compared
        if row.before is not None and row.now is not None
    )
    head = f"<h2>Against the baseline <small>{escape(report.baseline_bound)}</small></h2>"
    return f"{head}<table><tr><th></th><th>before</th><th>now</th><th>beyond noise</th></tr>{rows}</table>"
