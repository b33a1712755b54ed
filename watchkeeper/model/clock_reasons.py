"""Why a GPU's clocks are reduced: the bits of nvml.h's clocks event reasons, which DCGM exports as one mask.

The agent exports each under its name here; packs/throttle_reasons.csv explains them.
"""

from __future__ import annotations

IDLE, POWER_CAP, HW_SLOWDOWN, POWER_BRAKE = 0x1, 0x4, 0x8, 0x80
SW_THERMAL, HW_THERMAL = 0x20, 0x40
THERMAL = SW_THERMAL | HW_THERMAL
BITS = {
    "gpu_idle": IDLE,
    "clocks_setting": 0x2,
    "power_cap": POWER_CAP,
    "hw_slowdown": HW_SLOWDOWN,
    "sync_boost": 0x10,
    "sw_thermal": SW_THERMAL,
    "hw_thermal": HW_THERMAL,
    "hw_power_brake": POWER_BRAKE,
    "display_clocks": 0x100,
}
