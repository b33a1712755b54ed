"""`explain metric`: both names, the corrected bands, and help for a name that nobody knows."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from click.testing import CliRunner

from watchkeeper.catalogue import metrics, pack
from watchkeeper.cli.main import watchkeeper
from watchkeeper.query.promql import parser, walk
from watchkeeper.rules import rulefile


def test_a_metric_says_what_it_cannot_tell_and_what_to_look_at_next() -> None:
    output = CliRunner().invoke(watchkeeper, ["explain", "metric", "dcgm_fi_dev_xid_errors"]).output
    assert "not a count" in output
    assert "cannot show" in output
    assert "kernel log" in output


def test_the_new_name_of_a_field_leads_to_the_same_row() -> None:
    row = metrics.lookup("DCGM_FI_DEV_GPU_UTIL")
    assert row is not None
    assert metrics.lookup(row.newer_name) == row


def test_every_field_id_leads_to_its_metric() -> None:
    output = CliRunner().invoke(watchkeeper, ["explain", "metric", "155"]).output
    assert "DCGM_FI_DEV_POWER_USAGE" in output
    assert "field id      155" in output
    fields = {row["field_id"]: row["name"] for row in pack.load(metrics.FIELDS, dict)}
    rows = {field_id: metrics.lookup(field_id) for field_id in fields}
    assert {field_id: row and row.name for field_id, row in rows.items()} == fields


def test_a_field_that_watchkeeper_does_not_read_is_explained_by_id_and_by_both_names() -> None:
    for name in ("420", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0", "dcgm_fi_dev_nvlink_replay_error_l0_total"):
        output = CliRunner().invoke(watchkeeper, ["explain", "metric", name]).output
        assert "NVLink link 0: replays" in output
        assert "neither exports nor reads" in output
    # Rules and counters files are judged by what Watchkeeper has.
    assert metrics.lookup("420") is None


def test_a_number_that_is_no_public_field_of_dcgm_is_refused() -> None:
    result = CliRunner().invoke(watchkeeper, ["explain", "metric", "220"])
    assert result.exit_code == 2
    assert "no public field of this number" in result.output


def test_an_unknown_name_is_wrong_use_and_gets_close_ones() -> None:
    result = CliRunner().invoke(watchkeeper, ["explain", "metric", "GPU_TEMP_NOW"])
    assert result.exit_code == 2
    assert "DCGM_FI_DEV_GPU_TEMP" in result.output


def test_every_guide_belongs_to_a_metric_that_exists() -> None:
    assert not [row["name"] for row in pack.load(metrics.GUIDE, dict) if metrics.lookup(row["name"]) is None]


def test_every_metric_that_a_shipped_rule_reads_has_a_guide() -> None:
    rules = rulefile.load_rules([Path(str(resources.files("watchkeeper.packs") / "rules"))])
    every = [rule for group in rules.groups for rule in group.rules]
    written = {rule.name for rule in every if isinstance(rule, rulefile.RecordingRule)}
    read = {name for rule in every for name in walk.metric_names(parser.parse(rule.expr))}
    guides = {row["name"] for row in pack.load(metrics.GUIDE, dict)}
    assert read - written - guides - {""} == set()


def test_a_name_that_does_not_exist_leads_to_the_one_that_does() -> None:
    output = CliRunner().invoke(watchkeeper, ["explain", "metric", "DCGM_FI_DEV_TENSOR_ACTIVE"]).output
    assert "no such field" in output
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in output


def test_metrics_of_others_are_explained_under_their_own_names() -> None:
    output = CliRunner().invoke(watchkeeper, ["explain", "metric", "node_infiniband_symbol_error_total"]).output
    assert output.startswith("node_infiniband_symbol_error_total: ")
    assert "10 an hour" in output
