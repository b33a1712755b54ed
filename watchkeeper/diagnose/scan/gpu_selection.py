"""Limit a scan to selected GPUs: remove the facts that are only about other GPUs.

`watchkeeper scan -g` calls this before `examine`. Facts about the whole node stay. A selected GPU that does not answer
becomes a fault, because without it the GPU would count as healthy.
"""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.diagnose.scan.verdicts import GpuFacts, ScanFacts, ScanFault
from watchkeeper.model import gpu_selectors
from watchkeeper.readers.node import pci_sysfs

MISSING = "gpu_missing"


def select_gpus(facts: ScanFacts, selection: gpu_selectors.GpuSelection) -> ScanFacts:
    selected = tuple(gpu for gpu in facts.gpus if selection.includes(_selectable(gpu)))
    missing = selection.unmatched_texts(map(_selectable, facts.gpus))
    on_bus = {device.pci for device in facts.node.pci if device.kind is pci_sysfs.DeviceKind.GPU}
    by_address = {pci for pci in on_bus if selection.includes(gpu_selectors.SelectableGpu(None, None, pci))}
    chosen_addresses = {gpu.pci for gpu in selected} | by_address
    others = (on_bus | {gpu.pci for gpu in facts.gpus}) - chosen_addresses
    if missing:
        # A GPU that does not answer may be selected: keep all facts about GPUs that do not answer.
        others &= {gpu.pci for gpu in facts.gpus}
    is_known = bool(facts.gpus or on_bus)
    return replace(
        facts,
        node=replace(facts.node, pci=tuple(device for device in facts.node.pci if device.pci not in others)),
        gpus=selected,
        faults=(
            *(fault for fault in facts.faults if missing or _is_about(fault, selection)),
            *(ScanFault(MISSING, f"GPU {word} is selected and does not answer") for word in missing if is_known),
        ),
        kernel=None if facts.kernel is None else [fact for fact in facts.kernel if fact.pci not in others],
    )


def _selectable(gpu: GpuFacts) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(gpu.index, gpu.uuid, gpu.pci, gpu.slices)


def _is_about(fault: ScanFault, selection: gpu_selectors.GpuSelection) -> bool:
    return fault.gpu is None or selection.includes(gpu_selectors.SelectableGpu(None, fault.gpu, None))
