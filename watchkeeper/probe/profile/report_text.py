"""Render a report as text for a terminal: class, advice, evidence, expected values, timeline and comparison.

`cli.node.profile` prints the lines to standard error, because standard output belongs to the workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watchkeeper.probe.profile import advice
from watchkeeper.probe.profile.compare import Difference
from watchkeeper.probe.profile.report import PROFILER_CONFIDENCE, ProfileReport
from watchkeeper.probe.profile.verdict import Bound

METRIC_NAMES = {
    "gpu_util": "GPU utilisation",
    "tensor": "tensor cores",
    "power": "power, share of limit",
    "memory_used": "memory used",
    "pcie": "PCIe, share of link",
    "spread": "difference between GPUs",
}
HOST_FORMATS = {
    "cpu_cores": "{:.1f} cores in use",
    "busiest_thread": "busiest thread {:.0f} %",
    "disk_wait": "waiting for the disk {:.0f} %",
    "read_kbs": "{:,.0f} KiB/s read",
    "write_kbs": "{:,.0f} KiB/s written",
    "net_rx_kbs": "{:,.0f} KiB/s received",
    "net_tx_kbs": "{:,.0f} KiB/s sent",
    "rss_mib": "{:,.0f} MiB resident",
}


def report_lines(report: ProfileReport) -> Iterator[str]:
    verdict = report.main.verdict
    yield f"{report.bottleneck.title.upper()} ({verdict.bound.value}), confidence {verdict.confidence:.2f}"
    yield f"  {report.bottleneck.meaning}."
    yield f"  {verdict.why}."
    for doubt in verdict.doubts:
        yield f"  lower confidence: {doubt}"
    yield ""
    yield from _advice_lines(report)
    yield from _evidence_lines(report)
    yield from _expected_lines(report)
    yield from _timeline_lines(report)
    yield from _comparison_lines(report)
    for note in report.notes:
        yield f"note: {note}"


def _advice_lines(report: ProfileReport) -> Iterator[str]:
    yield f"Change first: {report.bottleneck.first_change}"
    yield f"  largest possible gain: {gain_text(report)}"
    yield f"Next: {report.bottleneck.next_change}"
    if report.main.verdict.confidence < PROFILER_CONFIDENCE or report.main.verdict.bound is Bound.MIXED:
        yield f"The counters do not show more. Run a profiler: {report.tool}"
    else:
        yield f"Profile it: {report.tool}"
    yield ""


def gain_text(report: ProfileReport) -> str:
    gain = report.gain
    return gain.why if gain.at_most is None else f"{gain.at_most:.3g} {gain.unit} ({gain.why})"


def _evidence_lines(report: ProfileReport) -> Iterator[str]:
    for gpu in report.gpus:
        features = gpu.main.features
        shares = (
            ("kernels", features.graphics),
            ("SMs", features.sm),
            ("tensor", features.tensor),
            ("memory", features.dram),
            ("PCIe", features.pcie),
            ("gpu_util", features.gpu_util),
        )
        share_text = ", ".join(f"{name} {100 * value:.1f} %" for name, value in shares if value is not None)
        power_text = "" if features.power_watts is None else f", {features.power_watts:.0f} W"
        yield f"GPU {gpu.gpu}: {gpu.main.verdict.bound.value}; {share_text}{power_text}"
        rate_text = ", ".join(f"{value:,.0f} {unit}" for unit, value in gpu.achieved.by_unit() if value >= 1)
        if rate_text:
            yield f"  about {rate_text} (estimates: share of each unit × its rate on {report.model.name})"
    if report.imbalance is not None:
        yield f"Uneven: {report.imbalance}"
    if report.host:
        yield f"Host: {', '.join(HOST_FORMATS[name].format(value) for name, value in report.host.items())}"
    yield ""


def _expected_lines(report: ProfileReport) -> Iterator[str]:
    assumed = " (assumed; set --kind)" if report.kind_is_assumed else ""
    yield f"Expected values for {report.kind.replace('_', '-')}{assumed}:"
    yield from expectation_rows(report.expected)
    yield ""


def expectation_rows(expected: Iterable[advice.MetricExpectation]) -> Iterator[str]:
    for row in expected:
        value_text = "unknown" if row.value is None else f"{100 * row.value:.0f} %"
        state = "?" if row.is_met is None else "ok" if row.is_met else "off"
        remark = f"  {row.remark}" if row.remark else ""
        range_text = f"expected {100 * row.low:.0f} to {100 * row.high:.0f} %"
        yield f"  {state:<4}{METRIC_NAMES[row.metric]:<24}{value_text:>8}   {range_text}{remark}"


def _timeline_lines(report: ProfileReport) -> Iterator[str]:
    start = report.started
    for gpu in report.gpus:
        if len(gpu.timeline) > 1:
            yield f"GPU {gpu.gpu} over {report.seconds:.0f} s:"
            for segment in gpu.timeline:
                span_text = f"{segment.since - start:7.1f} to {segment.until - start:.1f} s"
                yield f"  {span_text:<22}{segment.verdict.bound.value:<24}{segment.verdict.confidence:.2f}"
            yield ""


def _comparison_lines(report: ProfileReport) -> Iterator[str]:
    if report.baseline_bound is None:
        return
    yield f"Comparison with the baseline, which was {report.baseline_bound}:"
    for row in report.compared_columns:
        if row.change is not Difference.SAME and row.before is not None and row.now is not None:
            noise = "" if row.noise is None else f" (noise {row.noise:.2g})"
            yield f"  {row.change.value:<10}{row.column:<18}{row.before:10.1f} → {row.now:.1f} {row.unit}{noise}"
    same = sum(row.change is Difference.SAME for row in report.compared_columns)
    yield f"  {same} of {len(report.compared_columns)} values are the same within noise."
    yield ""
