"""Every Xid code has a row, and a code nobody has described is an answer too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from watchkeeper.catalogue import causes, pack, xid
from watchkeeper.errors import PackError
from watchkeeper.model import alerts


def test_all_176_codes_are_there_once() -> None:
    assert [row.code for row in xid.all_codes()] == list(range(1, 177))


@pytest.mark.parametrize(
    ("code", "cause", "severity", "settle_seconds"),
    [
        (79, "gpu_fell_off_bus", "critical", 0),
        (48, "ecc_uncorrectable", "critical", 0),
        (95, "ecc_uncorrectable", "critical", 0),
        (119, "gsp_timeout", "critical", 0),
        (64, "row_remap_failure", "critical", 0),
        (63, "row_remap_pending", "warning", 10),
        (74, "nvlink_error", "critical", 10),
        (31, "app_illegal_access", "warning", 10),
        (13, "app_illegal_access", "warning", 10),
        (92, "ecc_correctable_storm", "warning", 10),
        (38, "unknown", "warning", 10),
    ],
)
def test_a_code_points_at_its_cause(code: int, cause: str, severity: str, settle_seconds: int) -> None:
    row = xid.lookup(code)
    assert (row.cause, row.severity, row.settle_seconds) == (cause, severity, settle_seconds)


def test_every_cause_of_a_code_is_a_shipped_one() -> None:
    cause_ids = {row.cause for row in causes.all_causes()}
    assert {row.cause for row in xid.all_codes()} <= cause_ids


def test_nothing_is_said_about_applications_for_codes_without_current_hardware() -> None:
    assert {row.cause for row in xid.all_codes() if row.is_unused} == {"unknown"}


def test_an_application_fault_waits_for_a_worse_one_and_a_lost_gpu_does_not() -> None:
    assert all(row.settle_seconds > 0 for row in xid.all_codes() if row.cause == "app_illegal_access")
    assert xid.lookup(79).settle_seconds == 0


def test_an_undescribed_code_says_so_and_claims_nothing() -> None:
    row = xid.lookup(999)
    assert (row.code, row.is_known, row.cause, row.needs_drain) == (999, False, "unknown", False)
    assert row.severity is alerts.Severity.WARNING
    assert "not in the catalogue" in row.certainty


@pytest.mark.parametrize(
    ("cell", "broken", "problem"),
    [
        (",fatal,", ",awful,", "expected one of critical, fatal, info, warning; found 'awful'"),
        (",node,", ",galaxy,", "found 'galaxy'"),
        ("79,", "seventy-nine,", "invalid literal"),
        (",yes,", ",maybe,", "expected yes or no, found 'maybe'"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(cell: str, broken: str, problem: str) -> None:
    header = (
        "code,short_name,class,severity,scope,likely_cause,immediate_action,needs_drain,nvidia_immediate_resolution,"
        "nvidia_investigatory_resolution,mnemonic,unused_in_catalogue,k8s_device_plugin_default,note,source,cause,settle_seconds"
    )
    row = "79,fell off,pcie,fatal,node,link down,reboot_node,yes,,,,no,ignored,,a source,unknown,0"
    assert len(pack.read(f"{header}\n{row}\n", xid.read_row, file="xid.csv")) == 1
    with pytest.raises(PackError, match=problem) as caught:
        pack.read(f"{header}\n{row}\n{row.replace(cell, broken, 1)}\n", xid.read_row, file="xid.csv")
    assert caught.value.where == "packs/xid.csv:3"


def test_a_row_with_a_cell_too_few_and_a_table_without_a_column_are_named() -> None:
    with pytest.raises(PackError, match="2 cells") as caught:
        pack.read("a,b\n1\n", lambda cells: cells, file="t.csv")
    assert caught.value.where == "packs/t.csv:2"
    with pytest.raises(PackError, match="column 'short_name' is missing"):
        pack.read("code\n79\n", xid.read_row, file="xid.csv")


def test_importing_the_catalogue_reads_no_table() -> None:
    program = (
        "import sys, watchkeeper.catalogue.xid as x, watchkeeper.catalogue.causes;"
        "print(x._by_code.cache_info().currsize, 'numpy' in sys.modules, 'yaml' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "False", "False"]
