"""A report in words, for a terminal: what it is bound by first, then evidence, what to do, and the rest.

`cli.node.profile` prints the lines on the standard error, because the standard output belongs to the workload.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.probe.profile.compare import Difference
from watchkeeper.probe.profile.report import ASK_PROFILER, ProfileReport
from watchkeeper.probe.profile.verdict import Bound

NAMES = {
    "gpu_util": "GPU utilization",
    "tensor": "tensor cores",
    "power": "power, of the limit",
    "memory_used": "memory in use",
    "pcie": "PCIe, of the link",
    "spread": "difference between GPUs",
}
HOST = {
    "cpu_cores": "{:.1f} cores in use",
    "busiest_thread": "busiest thread {:.0f} %",
    "disk_wait": "waiting for the disk {:.0f} %",
    "read_kbs": "{:,.0f} KiB/s read",
    "write_kbs": "{:,.0f} KiB/s written",
    "net_rx_kbs": "{:,.0f} KiB/s received",
    "net_tx_kbs": "{:,.0f} KiB/s sent",
    "rss_mib": "{:,.0f} MiB resident",
}


def lines(report: ProfileReport) -> Iterator[str]:
    main = report.main
    verdict = main.verdict
    yield f"{report.words.title.upper()} ({verdict.bound.value}), confidence {verdict.confidence:.2f}"
    yield f"  {report.words.meaning}."
    yield f"  {verdict.why}."
    for doubt in verdict.unsure:
        yield f"  less sure: {doubt}"
    yield ""
    yield from _advice(report)
    yield from _evidence(report)
    yield from _expected(report)
    yield from _timeline(report)
    yield from _compared(report)
    for note in report.notes:
        yield f"note: {note}"


def _advice(report: ProfileReport) -> Iterator[str]:
    yield f"Change first: {report.words.first_change}"
    yield f"  could give at most: {gain(report)}"
    yield f"Then: {report.words.then}"
    if report.main.verdict.confidence < ASK_PROFILER or report.main.verdict.bound is Bound.MIXED:
        yield f"The counters cannot tell more; this can: {report.tool}"
    else:
        yield f"To see where: {report.tool}"
    yield ""


def gain(report: ProfileReport) -> str:
    found = report.gain
    return found.why if found.at_most is None else f"{found.at_most:.3g} {found.unit} ({found.why})"


def _evidence(report: ProfileReport) -> Iterator[str]:
    for gpu in report.gpus:
        features, rate = gpu.main.features, gpu.achieved
        shares = (
            ("kernels run", features.graphics),
            ("SMs", features.sm),
            ("tensor", features.tensor),
            ("memory", features.dram),
            ("PCIe", features.pcie),
            ("gpu_util", features.gpu_util),
        )
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in shares if value is not None)
        watts = "" if features.power_watts is None else f", {features.power_watts:.0f} W"
        yield f"GPU {gpu.gpu}: {gpu.main.verdict.bound.value}; {told}{watts}"
        rates = (
            ("TFLOP/s on tensor cores if 16-bit", rate.tensor_tflops),
            ("TFLOP/s fp32", rate.fp32_tflops),
            ("TFLOP/s fp64", rate.fp64_tflops),
            ("GB/s memory", rate.memory_gb),
            ("GB/s PCIe", rate.pcie_gb),
        )
        known = ", ".join(f"{value:,.0f} {unit}" for unit, value in rates if value is not None and value >= 1)
        if known:
            yield f"  about {known} (estimates: share of each unit × its figure for {report.model.name})"
    if report.imbalance is not None:
        yield f"Uneven: {report.imbalance}"
    if report.host:
        yield f"Host: {', '.join(HOST[name].format(value) for name, value in report.host.items())}"
    yield ""


def _expected(report: ProfileReport) -> Iterator[str]:
    assumed = " (assumed; --kind says otherwise)" if report.kind_is_assumed else ""
    yield f"What {report.kind.replace('_', '-')} should look like{assumed}:"
    for row in report.expected:
        seen = "unknown" if row.seen is None else f"{100 * row.seen:.0f} %"
        word = "?" if row.is_met is None else "ok" if row.is_met else "off"
        remark = f"  {row.remark}" if row.remark else ""
        wanted = f"expected {100 * row.low:.0f} to {100 * row.high:.0f} %"
        yield f"  {word:<4}{NAMES[row.metric]:<24}{seen:>8}   {wanted}{remark}"
    yield ""


def _timeline(report: ProfileReport) -> Iterator[str]:
    start = report.started
    for gpu in report.gpus:
        if len(gpu.timeline) > 1:
            yield f"GPU {gpu.gpu} over {report.seconds:.0f} s:"
            for part in gpu.timeline:
                span = f"{part.since - start:7.1f} to {part.until - start:.1f} s"
                yield f"  {span:<22}{part.verdict.bound.value:<24}{part.verdict.confidence:.2f}"
            yield ""


def _compared(report: ProfileReport) -> Iterator[str]:
    if report.baseline_bound is None:
        return
    yield f"Against the baseline, which was {report.baseline_bound}:"
    for row in report.compared:
        if row.change is not Difference.SAME and row.before is not None and row.now is not None:
            noise = "" if row.noise is None else f" (noise {row.noise:.2g})"
            yield f"  {row.change.value:<10}{row.column:<18}{row.before:10.1f} → {row.now:.1f} {row.unit}{noise}"
    same = sum(row.change is Difference.SAME for row in report.compared)
    yield f"  {same} of {len(report.compared)} numbers are the same within noise."
    yield ""
