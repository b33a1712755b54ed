"""Memory errors and slowed clocks of GPUs over some minutes, as PromQL, and what the numbers mean.

`workloads.questions` asks around a loss that went wrong, `diagnose.surroundings` around an incident of a job.
"""

from __future__ import annotations

from watchkeeper.model import clock_reasons

# Counters that grow when memory errs, the cause that it speaks for, and what to call it; volatile ones count since the
# driver was loaded.
MEMORY_ERRORS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrectable", "uncorrectable ECC errors"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("row_remap_pending", "rows remapped after uncorrectable errors"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_correctable_storm", "corrected ECC errors"),
}
CLOCK_REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def memory_error_growth(where: str, *, minutes: int) -> str:
    """By how much each counter grew, also where it did not: a counter that nobody exports is another thing.

    The label `field` says which it is.
    """
    parts = (
        f'label_replace(increase({name}{{{where}}}[{minutes}m]), "field", "{name}", "", "")' for name in MEMORY_ERRORS
    )
    return " or ".join(parts)


def worst_clock_reasons(where: str, *, minutes: int) -> str:
    """The largest number of the window: bits of heat and of the power brake are the highest that data centres see."""
    return f"max_over_time({CLOCK_REASONS}{{{where}}}[{minutes}m])"


def is_throttled(reasons: float) -> bool:
    """Whether heat or the power brake is among the reasons."""
    return 0 <= reasons < 2**32 and bool(int(reasons) & (clock_reasons.THERMAL | clock_reasons.POWER_BRAKE))
