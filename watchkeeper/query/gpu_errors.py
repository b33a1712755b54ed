"""PromQL for memory errors and throttling of GPUs over some minutes.

`workloads.job_queries` uses it around a bad loss, `diagnose.place_context` around an incident of a job.
"""

from __future__ import annotations

from watchkeeper.model import clock_reasons

# Counters of memory errors, each with its cause and its title; volatile counters start when the driver is loaded.
MEMORY_ERRORS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrectable", "uncorrectable ECC errors"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("row_remap_pending", "rows remapped after uncorrectable errors"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_correctable_storm", "corrected ECC errors"),
}
CLOCK_REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def memory_errors_query(matchers: str, *, minutes: int) -> str:
    """PromQL for the increase of each exported counter, also if it is 0; the label `field` names the counter."""
    parts = (
        f'label_replace(increase({name}{{{matchers}}}[{minutes}m]), "field", "{name}", "", "")'
        for name in MEMORY_ERRORS
    )
    return " or ".join(parts)


def clock_reasons_query(matchers: str, *, minutes: int) -> str:
    """PromQL for the largest bit mask of the window; thermal and power brake bits are the highest ones in use."""
    return f"max_over_time({CLOCK_REASONS}{{{matchers}}}[{minutes}m])"


def is_throttling(reasons: float) -> bool:
    """Whether thermal slowdown or the power brake is among the clock event reasons."""
    return 0 <= reasons < 2**32 and bool(int(reasons) & (clock_reasons.THERMAL | clock_reasons.POWER_BRAKE))
