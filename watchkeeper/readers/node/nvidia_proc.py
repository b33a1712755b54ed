"""Read the NVIDIA driver's file about one GPU, /proc/driver/nvidia/gpus/<pci>/information.

It works without NVML and after the GPU was lost, so the agent uses it to map the PCI address of a kernel message to
the GPU's UUID.
"""

from __future__ import annotations

from watchkeeper.model import fleet


def read_information(text: str) -> fleet.Gpu | None:
    """The GPU that the file describes; None while the driver does not know its UUID."""
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    uuid, bus_location = fields.get("GPU UUID", ""), fields.get("Bus Location", "")
    # A GPU that no process has opened yet reads GPU-????????-????-????-????-????????????.
    if not uuid.startswith("GPU-") or "?" in uuid:
        return None
    try:
        pci = fleet.normalise_pci(bus_location)
    except ValueError:
        pci = None
    return fleet.Gpu(uuid, pci=pci, model=fields.get("Model") or None)
