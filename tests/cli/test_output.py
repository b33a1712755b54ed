"""Output of commands: a closed pipe, a full disk, a file that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchkeeper import errors
from watchkeeper.cli import main
from watchkeeper.diagnose import pod

WAIT_SECONDS = 60


def run(*words: str, stdout: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "watchkeeper.cli.main", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=WAIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_a_closed_pipe_has_its_own_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert run("sim", "list", stdout=writing) == (main.EXIT_BROKEN_PIPE, "")
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_a_one_line_error() -> None:
    with Path("/dev/full").open("wb") as full:
        code, words = run("sim", "list", stdout=full.fileno())
    assert (code, words) == (1, "watchkeeper: the output: cannot be written: No space left on device\n")


def test_an_output_file_for_a_table_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main.main(["cost", "report", "-o", str(tmp_path / "cost.csv")])
    assert left.value.code == 2
    assert "add --format csv" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_where_a_data_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, words = run("hub", "--port", "0", "--data", str(tmp_path / "file"), stdout=subprocess.DEVNULL)
    assert code == 2
    assert "the data directory cannot be used" in words


def test_kubectl_output_in_one_long_line_is_parsed_quickly() -> None:
    pods = [{"kind": "Pod", "metadata": {"namespace": "ml", "name": f"train-{at}"}} for at in range(20_000)]
    text = json.dumps({"kind": "List", "items": pods})
    assert pod.explain_pasted(text, "ml", "other") is None
    explanation = pod.explain_pasted(f"{text}\nEvent: exceeded quota: gpus\nmore", "ml", "other")
    assert explanation is not None
    assert (explanation.cause, explanation.why) == ("quota_exceeded", "Event: exceeded quota: gpus")


def test_bytes_that_are_not_text_cause_no_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe 0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n")
    with pytest.raises(SystemExit) as left:
        main.main(["explain", "pod", "ml/train", "--file", str(tmp_path / "log")])
    assert left.value.code == 1
    assert "Insufficient nvidia.com/gpu" in capsys.readouterr().out


def test_an_error_that_is_a_question_keeps_its_question_mark() -> None:
    error = errors.WatchkeeperError("which column is it?", now="It has a, b", remedy="Say it.")
    assert str(error) == "which column is it? It has a, b. Say it"
