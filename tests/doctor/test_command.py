"""`watchkeeper doctor` on a command line: the documented JSON, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from watchkeeper.cli.main import watchkeeper
from watchkeeper.readers.node import local_commands

LOST = "gpu07: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.\n"


def test_json_has_the_documented_shape() -> None:
    result = CliRunner().invoke(watchkeeper, ["doctor", "-", "--json"], input=LOST)
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert answer["inputs"] == [{"name": "-", "kind": "kernel_log"}]
    event = answer["events"][0]
    assert (event["kind"], event["code"], event["pci"], event["pid"]) == ("xid", 79, "0000:3b:00", 4711)
    finding = answer["findings"][0]
    assert set(finding) == {"cause", "confidence", "where", "title", "why", "evidence", "actions", "not"}
    assert finding["where"]["node"] == "gpu07"
    assert finding["evidence"][0] == {"input": "-", "line": 1, "text": LOST.strip()}
    assert set(finding["actions"][0]) == {"do", "command", "risk"}


def test_each_verdict_has_its_exit_code(tmp_path: Path) -> None:
    def run(*arguments: str, given: str = "") -> int:
        return CliRunner().invoke(watchkeeper, ["doctor", *arguments], input=given).exit_code

    assert run("-", given="2026-08-10 10:00:00 INFO all is well\n") == 0
    assert run("-", given=LOST) == 1
    assert run(str(tmp_path / "absent.log")) == 2
    assert run("-", given="NVRM: Xid (PCI:0000:3b:00): 45, Ch 1\n") == 3


def test_the_output_shows_place_reason_and_next_step() -> None:
    output = CliRunner().invoke(watchkeeper, ["doctor", "-"], input=LOST).output
    assert "GPU 0000:3b:00 of gpu07 fell off the bus" in output
    assert "systemctl reboot" in output


@pytest.mark.slow
def test_a_command_that_hangs_is_skipped_with_a_note() -> None:
    [answer] = local_commands.run_commands(
        [[sys.executable, "-c", "import time; print(1); time.sleep(60)"]], timeout_seconds=0.5
    )
    assert b"timed out after 0.5 seconds" in answer.text


def test_the_doctor_starts_without_the_hub_s_libraries() -> None:
    code = (
        "import sys\n"
        "for name in ('numpy', 'yaml', 'starlette', 'orjson', 're2'): sys.modules[name] = None\n"
        "import watchkeeper.cli.doctor.doctor\n"
        "print(sorted(name for name in sys.modules if name.startswith('watchkeeper.query')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_node_whose_gpus_cannot_be_read_is_not_healthy(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("#!/bin/sh\necho '[    1.0] usb 1-1: new device'\n")
    log.chmod(0o755)
    line = [sys.executable, "-m", "watchkeeper", "doctor"]
    done = subprocess.run(
        line,
        env={**os.environ, "PATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert "note: nvidia-smi is not installed: the GPUs were not checked" in done.stdout
