"""dcgm-exporter's counters file decides what is on the page."""

from __future__ import annotations

from watchkeeper.readers import counters_csv
from watchkeeper.readers.nvml import choice

FILE = """\
# Format
# If line starts with a '#' it is considered a comment
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_GPU_TEMP, gauge, "GPU temperature, in C."
DCGM_FI_DRIVER_VERSION, label, Driver Version
# DCGM_FI_DEV_FB_USED, gauge, commented out
"""


def test_a_counters_file_of_dcgm_exporter_is_read() -> None:
    counters_file = counters_csv.read(FILE.splitlines())
    assert not counters_file.problems
    assert [(counter.name, counter.prom_type, counter.help) for counter in counters_file.counters] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
        ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature, in C."),
        ("DCGM_FI_DRIVER_VERSION", "label", "Driver Version"),
    ]


def test_an_invalid_line_is_reported_and_the_others_are_used() -> None:
    lines = ["DCGM_FI_DEV_SM_CLOCK, gauge", "DCGM_FI_DEV_GPU_TEMP, histogram, x", 'DCGM_FI_DEV_X, gauge, "open']
    good = "DCGM_FI_DEV_GPU_UTIL, gauge, busy"
    counters_file = counters_csv.read([*lines, good, good])
    assert [counter.name for counter in counters_file.counters] == ["DCGM_FI_DEV_GPU_UTIL"]
    assert [problem.partition(":")[0] for problem in counters_file.problems] == ["line 1", "line 2", "line 3", "line 5"]
    assert "2 columns, expected 3" in counters_file.problems[0]
    assert "is a duplicate of line 4" in counters_file.problems[3]


def test_a_field_that_nvml_does_not_have_is_reported_and_dropped() -> None:
    counters = counters_csv.read([*FILE.splitlines(), "DCGM_FI_DEV_DIAG_EUD_RESULT, gauge, x"]).counters
    chosen = choice.choose_families(counters)
    assert tuple(family.name for family in chosen.families[:3]) == (
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DRIVER_VERSION",
    )
    assert chosen.problems == ("line 9: NVML does not provide DCGM_FI_DEV_DIAG_EUD_RESULT; the field was dropped",)


def test_type_and_help_come_from_the_counters_file() -> None:
    chosen = choice.choose_families(counters_csv.read(["DCGM_FI_DEV_GPU_TEMP, counter, How hot."]).counters)
    assert chosen.families[0].head == ("# HELP DCGM_FI_DEV_GPU_TEMP How hot.\n# TYPE DCGM_FI_DEV_GPU_TEMP counter\n")


def test_the_names_of_dcgm_4_6_are_given_on_request() -> None:
    chosen = choice.choose_families(counters_csv.read(["DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, How hot."]).counters)
    assert chosen.families[0].name == "DCGM_FI_DEV_GPU_TEMP_CELSIUS"
    assert chosen.families[0].call == "temperature"


def test_the_default_set_has_the_fields_that_the_shipped_rules_need() -> None:
    names = {family.name for family in choice.choose_families().families}
    assert {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "DCGM_FI_DEV_RETIRED_DBE",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "DCGM_FI_DEV_INFOROM_CONFIG_VALID",
        "watchkeeper_gpu_recovery_action",
    } <= names
    # 21 ms each, and the profiling counters say the same.
    assert "DCGM_FI_DEV_PCIE_TX_THROUGHPUT" not in names
