"""A scan of some of a node's GPUs: the same facts without those that are only about the others.

`watchkeeper scan -g` calls it before `examine`. What is about the whole node stays, and a chosen GPU that does not
answer becomes a fault: leaving it out would call it healthy.
"""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.diagnose.scan.verdicts import GpuFacts, ScanFacts, ScanFault
from watchkeeper.model import gpu_selectors
from watchkeeper.readers.node import pci_sysfs

MISSING = "gpu_missing"


def select_gpus(facts: ScanFacts, chosen: gpu_selectors.GpuSelection) -> ScanFacts:
    kept = tuple(gpu for gpu in facts.gpus if chosen.includes(_named(gpu)))
    missing = chosen.unmatched_texts(map(_named, facts.gpus))
    on_bus = {device.pci for device in facts.node.pci if device.kind is pci_sysfs.DeviceKind.GPU}
    by_address = {pci for pci in on_bus if chosen.includes(gpu_selectors.SelectableGpu(None, None, pci))}
    chosen_addresses = {gpu.pci for gpu in kept} | by_address
    others = (on_bus | {gpu.pci for gpu in facts.gpus}) - chosen_addresses
    if missing:
        # One of those that do not answer may be meant: what is said about them is not left out.
        others &= {gpu.pci for gpu in facts.gpus}
    is_known = bool(facts.gpus or on_bus)
    return replace(
        facts,
        node=replace(facts.node, pci=tuple(device for device in facts.node.pci if device.pci not in others)),
        gpus=kept,
        faults=(
            *(fault for fault in facts.faults if missing or _is_about(fault, chosen)),
            *(ScanFault(MISSING, f"GPU {word} was chosen and does not answer") for word in missing if is_known),
        ),
        kernel=None if facts.kernel is None else [fact for fact in facts.kernel if fact.pci not in others],
    )


def _named(gpu: GpuFacts) -> gpu_selectors.SelectableGpu:
    return gpu_selectors.SelectableGpu(gpu.index, gpu.uuid, gpu.pci, gpu.slices)


def _is_about(fault: ScanFault, chosen: gpu_selectors.GpuSelection) -> bool:
    return fault.gpu is None or chosen.includes(gpu_selectors.SelectableGpu(None, fault.gpu, None))
