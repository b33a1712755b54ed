"""`watchkeeper agent`: stop, systemd unit, keys, and the pause of profiling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import servers
from watchkeeper.cli.main import watchkeeper
from watchkeeper.cli.node import agent_control
from watchkeeper.errors import StartRefused
from watchkeeper.kit.files import read_key_file
from watchkeeper.model.orders import node_key

HUB_KEY = "0123456789abcdef" * 2


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(watchkeeper, list(arguments))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "hub.key"
    path.write_text(f"# of this hub\n{HUB_KEY}\n")
    path.chmod(0o600)
    return path


@pytest.mark.servers
def test_systemd_accepts_the_printed_unit(tmp_path: Path) -> None:
    analyze = servers.require("systemd-analyze")
    command = tmp_path / "watchkeeper"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    text = ran("agent", "unit").stdout
    unit = tmp_path / agent_control.UNIT
    unit.write_text(text.replace(agent_control.find_own_path(), str(command)))
    line = [str(analyze), "verify", "--man=no", str(unit)]
    verified = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.servers
def test_the_unit_is_sandboxed(tmp_path: Path) -> None:
    analyze = servers.require("systemd-analyze")
    unit = tmp_path / agent_control.UNIT
    unit.write_text(ran("agent", "unit").stdout)
    # From 0 to 100; what a service without any protection has is 96, and 30 still reads "OK".
    line = [str(analyze), "security", "--offline=yes", "--threshold=30", "--no-pager", str(unit)]
    judged = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert judged.returncode == 0, judged.stdout[-2000:] + judged.stderr


def test_the_unit_names_the_installed_command_and_no_placeholder() -> None:
    text = ran("agent", "unit").stdout
    assert f"ExecStart={agent_control.find_own_path()} agent " in text
    assert "@" not in text.replace("@system-service", "")


def test_the_printed_node_key_equals_the_key_that_the_hub_derives(key: Path) -> None:
    printed = ran("agent", "order-key", str(key), "--node", "n1").stdout.strip()
    assert printed.encode() == node_key(HUB_KEY.encode(), "main", "n1")
    assert printed != ran("agent", "order-key", str(key), "--node", "n2").stdout.strip()


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("x" * 31, 0o600, "31 characters, the minimum is 32"),
        (HUB_KEY, 0o604, "mode 0604"),
        ("# only\n", 0o600, "0 characters"),
        ("0" * 64 + "\n", 0o600, "1 different characters"),
    ],
)
def test_a_weak_or_readable_key_is_refused(tmp_path: Path, content: str, mode: int, words: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(StartRefused, match=words):
        read_key_file(path)
    with pytest.raises(StartRefused, match="No such file"):
        read_key_file(tmp_path / "nothing")


def test_profiling_is_paused_shown_and_resumed_on_this_node(tmp_path: Path) -> None:
    where = ["--spool", str(tmp_path)]
    assert ran("agent", "profiling", "resume", *where).stdout == "Profiling was not paused.\n"
    assert "Profiling paused until" in ran("agent", "profiling", "pause", "--for", "30m", *where).stdout
    shown = json.loads(ran("agent", "profiling", "show", "--json", *where).stdout)
    assert (shown["is_paused"], set(shown["pause"])) == (True, {"since", "until", "by"})
    assert "Paused by" in ran("agent", "profiling", "show", *where).stdout
    assert "Profiling resumed" in ran("agent", "profiling", "resume", *where).stdout
    assert ran("agent", "profiling", "show", *where).stdout == "Profiling is not paused.\n"


@pytest.mark.parametrize(
    ("length", "words"), [("25h", "from 1s to 24h"), ("0s", "from 1s to 24h"), ("5", "has no unit"), ("x", "is not a")]
)
def test_a_pause_of_invalid_length_is_a_usage_error(tmp_path: Path, length: str, words: str) -> None:
    wrong = ran("agent", "profiling", "pause", "--for", length, "--spool", str(tmp_path))
    assert (wrong.exit_code, words in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_the_agent_stops_while_a_read_of_a_file_hangs(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    # Opening it waits for a writer that never comes, as reading from a program that hangs in the driver may.
    os.mkfifo(tmp_path / "proc/loadavg")
    options = ["--no-hub", "--no-gpus", "--listen", "none", "--no-ipmi", "--spool", str(tmp_path / "spool")]
    looking_at = ["--host-root", str(tmp_path), "--kmsg", str(tmp_path / "none")]
    arguments = [sys.executable, "-m", "watchkeeper.cli.main", "agent", *options, *looking_at]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "agent started" in child.stderr.readline()
        with (tmp_path / "proc/loadavg").open("w"):
            # The reading thread is there now, and is kept by this end.
            child.terminate()
            assert child.wait(60) == 0
        assert "agent stopped" in child.stderr.read()
