"""The state of a GPU in a log record, in the format that the agent's logs and a program's logs share.

`gpu_reader` fills them from NVML for a program, `agent.log_context` from the sampler's snapshot for the agent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuState:
    """The last reading of one GPU; None: not reported. `xid_count` counts from the start of the reader."""

    index: int
    uuid: str
    temperature_celsius: float | None = None
    utilisation_percent: float | None = None
    power_watts: float | None = None
    memory_used_mib: float | None = None
    sm_clock_mhz: float | None = None
    xid_count: int | None = None

    def plain(self) -> dict[str, float | str]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        parts = (
            (self.temperature_celsius, "°C"),
            (self.utilisation_percent, "%"),
            (self.power_watts, "W"),
            (self.memory_used_mib, "MiB"),
            (self.xid_count or None, "Xid"),
        )
        return " ".join([f"gpu{self.index}", *(f"{value:.0f} {unit}" for value, unit in parts if value is not None)])
