"""Run all checks of a scan on the facts of a node, or on those of selected GPUs.

`watchkeeper scan` calls `select_gpus` and `examine`, prints the report and sets the exit code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from watchkeeper.diagnose.scan import gpu_checks, node_checks
from watchkeeper.diagnose.scan.verdicts import GpuFacts, ScanFacts, ScanFault, ScanResult, ScanVerdict
from watchkeeper.model import gpu_selectors
from watchkeeper.readers.node import pci_sysfs


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The results, the worst first; the overall verdict is the worst one, or unknown without results."""

    results: tuple[ScanResult, ...]

    @property
    def verdict(self) -> ScanVerdict:
        verdicts = [result.verdict for result in self.results]
        return max(verdicts, key=lambda verdict: verdict.rank, default=ScanVerdict.UNKNOWN)

    @property
    def problems(self) -> tuple[ScanResult, ...]:
        return tuple(result for result in self.results if result.verdict is not ScanVerdict.HEALTHY)


def check_names() -> list[str]:
    return [check.__name__ for check in (*node_checks.CHECKS, *gpu_checks.CHECKS)]


def examine(facts: ScanFacts, *, disabled: Collection[str] = ()) -> ScanReport:
    """Run every enabled check once; the checks themselves do not know which are disabled."""
    results = [result for check in node_checks.CHECKS if check.__name__ not in disabled for result in check(facts)]
    for gpu in facts.gpus:
        for gpu_check in gpu_checks.CHECKS:
            if gpu_check.__name__ not in disabled:
                result = gpu_check(gpu, facts.watched_seconds)
                results += [] if result is None else [replace(result, gpu=gpu.uuid)]
    return ScanReport(tuple(sorted(results, key=lambda result: -result.verdict.rank)))


def select_gpus(facts: ScanFacts, selection: gpu_selectors.GpuSelection) -> ScanFacts:
    """Remove the facts that are only about other GPUs; facts about the whole node stay.

    A selected GPU that does not answer becomes a fault, because without it the GPU would count as healthy.
    """
    selected = tuple(gpu for gpu in facts.gpus if selection.includes(_selectable(gpu)))
    missing = selection.unmatched_texts(map(_selectable, facts.gpus))
    on_bus = {device.pci for device in facts.node.pci if device.kind is pci_sysfs.DeviceKind.GPU}
    by_address = {pci for pci in on_bus if selection.includes(gpu_selectors.SelectableGpu(None, None, pci))}
    others = (on_bus | {gpu.pci for gpu in facts.gpus}) - {gpu.pci for gpu in selected} - by_address
    if missing:
        # A GPU that does not answer may be selected: keep all facts about GPUs that do not answer.
        others &= {gpu.pci for gpu in facts.gpus}
    faults = [fault for fault in facts.faults if missing or _is_about(fault, selection)]
    if facts.gpus or on_bus:
        faults += [ScanFault("gpu_missing", f"GPU {word} is selected and does not answer") for word in missing]
    return replace(
        facts,
        node=replace(facts.node, pci=tuple(device for device in facts.node.pci if device.pci not in others)),
        gpus=selected,
        faults=tuple(faults),
        kernel=None if facts.kernel is None else [fact for fact in facts.kernel if fact.pci not in others],
    )


def _selectable(gpu: GpuFacts) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(gpu.index, gpu.uuid, gpu.pci, gpu.slices)


def _is_about(fault: ScanFault, selection: gpu_selectors.GpuSelection) -> bool:
    return fault.gpu is None or selection.includes(gpu_selectors.SelectableGpu(None, fault.gpu, None))
