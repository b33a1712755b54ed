"""`watchkeeper explain xid`: an answer for every number."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from watchkeeper.cli.fleet import explain


def run(*args: str) -> Result:
    return CliRunner().invoke(explain.command, args)


def test_a_known_code_says_what_it_means_and_what_to_do() -> None:
    result = run("xid", "79")
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "Xid 79: GPU fell off the bus"
    for words in (
        "severity      critical",
        "drain first   yes",
        "now RESTART_BM",
        "drain and reboot the node",
        "confidence",
    ):
        assert words in result.output


def test_json_has_the_documented_keys() -> None:
    plain = json.loads(run("xid", "48", "--json").output)
    assert plain["code"] == 48
    assert plain["cause"] == "ecc_uncorrectable"
    assert set(plain) == {
        *("code", "name", "fault_class", "severity", "scope", "likely_cause", "action", "needs_drain"),
        *("nvidia_immediate", "nvidia_investigatory", "mnemonic", "is_unused", "device_plugin", "note", "source"),
        *("cause", "settle_seconds", "is_known", "certainty", "next_step"),
    }


def test_an_undescribed_code_is_an_answer() -> None:
    result = run("xid", "4711")
    assert result.exit_code == 0
    assert result.output.startswith("Xid 4711 is not in the catalogue\n")
    assert json.loads(run("xid", "4711", "--json").output)["is_known"] is False


def test_something_that_is_no_number_is_wrong_use() -> None:
    assert run("xid", "many").exit_code == 2
    assert run("xid", "-5").exit_code == 2
