"""`explain metric`: both names, the corrected bands, and help for a name that nobody knows."""

from __future__ import annotations

from click.testing import CliRunner

from watchkeeper.catalogue import metrics, pack
from watchkeeper.cli.main import watchkeeper


def test_a_metric_says_what_it_cannot_tell_and_what_to_look_at_next() -> None:
    output = CliRunner().invoke(watchkeeper, ["explain", "metric", "dcgm_fi_dev_xid_errors"]).output
    assert "not a count" in output
    assert "cannot tell" in output
    assert "kernel log" in output


def test_the_new_name_of_a_field_leads_to_the_same_row() -> None:
    row = metrics.lookup("DCGM_FI_DEV_GPU_UTIL")
    assert row is not None
    assert metrics.lookup(row.newer_name) == row


def test_an_unknown_name_is_wrong_use_and_gets_close_ones() -> None:
    result = CliRunner().invoke(watchkeeper, ["explain", "metric", "GPU_TEMP_NOW"])
    assert result.exit_code == 2
    assert "DCGM_FI_DEV_GPU_TEMP" in result.output


def test_every_guide_belongs_to_a_metric_that_exists() -> None:
    assert not [row["name"] for row in pack.load(metrics.GUIDE, dict) if metrics.lookup(row["name"]) is None]
