"""The NVIDIA driver's own page about one GPU, /proc/driver/nvidia/gpus/<pci>/information.

It needs no NVML and answers even when the GPU itself no longer does, so the agent uses it to give the
PCI address of a kernel message its GPU's UUID.
"""

from __future__ import annotations

from watchkeeper.model import fleet


def read_information(text: str) -> fleet.Gpu | None:
    """The GPU that the page describes, or None while the driver does not know its UUID."""
    named = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            named[name.strip()] = value.strip()
    uuid, address = named.get("GPU UUID", ""), named.get("Bus Location", "")
    # A GPU that nobody has opened yet reads GPU-????????-????-????-????-????????????.
    if not uuid.startswith("GPU-") or "?" in uuid:
        return None
    try:
        pci = fleet.normalise_pci(address)
    except ValueError:
        pci = None
    return fleet.Gpu(uuid, pci=pci, model=named.get("Model") or None)
