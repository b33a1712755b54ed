"""`watchkeeper profile` as a program: with fake GPUs, without GPUs, and with a driver that hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.probe.profile import loads
from tests.support.fake_nvml import driver
from tests.support.waiting import until
from watchkeeper.probe.profile import columns, recorder, recording, runner
from watchkeeper.probe.profile.recording import Recording

LINE = [sys.executable, "-m", "watchkeeper.cli.main", "profile"]
BUSY = {"graphics_util": 98, "sm_util": 95, "any_tensor_util": 85, "dram_bw_util": 18, "pcie_rx_per_sec": 20}


@pytest.fixture
def busy(fake: driver.FakeNvml) -> driver.FakeNvml:
    """Two GPUs: the first computes matrix products, the second is idle."""
    fake.tell(0, PowerUsage=690000)
    fake.tell(0, "UtilizationRates.gpu", 99)
    for name, value in BUSY.items():
        fake.tell(0, f"Gpm.{columns.GPM_METRICS[name]}", value)
    return fake


def run(environment: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINE, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=cwd
    )


def sleeper(seconds: float, code: int = 0) -> list[str]:
    program = f"import sys, time; print('from the workload', flush=True); time.sleep({seconds}); sys.exit({code})"
    return [sys.executable, "-c", program]


def await_rows(running: recorder.Recorder, min_rows: dict[str, int]) -> None:
    """Wait until each of these GPUs has this many rows."""

    def has_rows() -> bool:
        assert running.check_health() is None
        rows = {track.gpu: len(track) for track in running.finish().tracks}
        return all(rows.get(gpu, 0) >= count for gpu, count in min_rows.items())

    until(has_rows, what=f"rows {min_rows}", interval_seconds=0.02)


@pytest.mark.slow
def test_a_workload_keeps_output_and_exit_code_and_the_report_follows(busy: driver.FakeNvml, tmp_path: Path) -> None:
    ran = run(busy.environment, "--output", "out", "--", *sleeper(3, 7), cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (7, "from the workload\n")
    assert "BOUND BY TENSOR CORES (compute_bound)" in ran.stderr
    assert "TFLOP/s" in ran.stderr
    saved = next((tmp_path / "out").glob("recording.*"))
    track = recording.read_recording(saved).tracks[0]
    assert len(track) >= 10
    assert track.has("rss_mib")
    assert "<svg" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_standard_output_has_only_the_json(busy: driver.FakeNvml, tmp_path: Path) -> None:
    ran = run(busy.environment, "--json", "--output", "out", "--", *sleeper(2), cwd=tmp_path)
    answer = json.loads(ran.stdout)
    assert (answer["class"], [gpu["gpu"] for gpu in answer["gpus"]]) == ("compute_bound", ["0"])
    assert "from the workload" in ran.stderr
    assert len(answer["files"]) == 3


@pytest.mark.slow
def test_ctrl_c_ends_the_workload_and_still_reports(busy: driver.FakeNvml, tmp_path: Path) -> None:
    program = "import time; time.sleep(2); print('at work', flush=True); time.sleep(60)"
    line = [*LINE, "--output", "out", "--", sys.executable, "-c", program]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(line, env=busy.environment, cwd=tmp_path, stdin=nothing, stdout=pipe, stderr=pipe) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"at work\n"
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
    # Python ends with SIGINT when it is interrupted.
    assert running.returncode == 128 + signal.SIGINT
    assert b"compute_bound" in stderr


@pytest.mark.slow
def test_a_running_program_is_recorded_for_a_time(busy: driver.FakeNvml, tmp_path: Path) -> None:
    with subprocess.Popen(sleeper(60), stdout=subprocess.DEVNULL) as job:
        ran = run(busy.environment, "--pid", str(job.pid), "--for", "2s", "--json", "--output", "o", cwd=tmp_path)
        assert job.poll() is None
        job.kill()
    answer = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert 1 <= answer["seconds"] < 60
    assert "cpu_cores" in answer["host"]


@pytest.mark.slow
def test_without_gpm_the_confidence_is_lower(busy: driver.FakeNvml, tmp_path: Path) -> None:
    busy.tell(driver.EVERY, gpm=0)
    ran = run(busy.environment, "--for", "2s", "--json", "--output", "o", cwd=tmp_path)
    answer = json.loads(ran.stdout)
    assert any("confidence × 0.72" in text for text in answer["unsure"])
    assert any("no GPM counters" in text for text in answer["notes"])


@pytest.mark.slow
def test_a_hanging_driver_is_reported_and_the_workload_continues(
    busy: driver.FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setenv(name, busy.environment[name])
    monkeypatch.setattr(recorder, "READ_TIMEOUT_SECONDS", 1.0)

    def hang(_: float, running: recorder.Recorder) -> None:
        if any(len(track) >= 3 for track in running.finish().tracks):
            busy.tell(driver.EVERY, all=driver.HANG)
            monkeypatch.setattr(recorder, "OPEN_TIMEOUT_SECONDS", 1.0)

    may_end = tmp_path / "may-end"
    waiting = f"import os, sys, time\nwhile not os.path.exists({str(may_end)!r}): time.sleep(0.02)\nsys.exit(5)"
    recorded = runner.run(runner.RecordingRequest(command=[sys.executable, "-c", waiting]), hang)
    assert "the driver gave no answer" in recorded.problems[0]
    assert recorded.exit_code is None
    assert len(recorded.recording.tracks[0]) >= 3
    may_end.touch()
    assert runner.wait_for_exit(recorded) == 5


@pytest.mark.slow
def test_a_hanging_gpu_is_named_and_recording_of_the_others_continues(
    busy: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setenv(name, busy.environment[name])
    monkeypatch.setattr(recorder, "READ_TIMEOUT_SECONDS", 1.0)
    with recorder.Recorder(0.1) as running:
        await_rows(running, {"0": 3, "1": 3})
        busy.tell(0, PowerUsage=driver.HANG)
        before = len(running.finish().tracks[1])
        await_rows(running, {"1": before + 10})
        recorded = running.finish()
    (note,) = recorded.notes
    assert re.fullmatch(
        r"GPU 0 gave no answer for \d+ s, the limit is 1 s: a call hangs; recording of the others continued", note
    )


def test_a_killed_recorder_is_reported_and_its_rows_are_kept(
    busy: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setenv(name, busy.environment[name])
    with recorder.Recorder(0.1) as running:
        await_rows(running, {"0": 2})
        assert running._child is not None
        running._child.kill()
        running._child.wait()
        running.record_processes(os.getpid())
        assert "the recorder exited early" in (running.check_health() or "")
    assert running.finish().tracks


def test_a_gpu_that_is_lost_from_the_start_does_not_affect_the_other(
    busy: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setenv(name, busy.environment[name])
    busy.tell(1, all=driver.GPU_IS_LOST)
    with recorder.Recorder(0.1) as running:
        await_rows(running, {"0": 2})
        recorded = running.finish()
    assert [track.gpu for track in recorded.tracks] == ["0"]
    assert "GPU 1 cannot be read" in recorded.notes[0]


@pytest.mark.slow
def test_a_mig_gpu_without_counters_is_not_reported_as_idle(fake: driver.FakeNvml, tmp_path: Path) -> None:
    fake.tell(driver.EVERY, UtilizationRates=driver.NOT_SUPPORTED, gpm=0)
    ran = run(fake.environment, "--for", "1s", "--output", "out", cwd=tmp_path)
    assert "reports neither gpu_util nor GPM counters" in ran.stderr
    assert "idle" not in ran.stderr


def test_without_a_gpu_it_exits_with_3_and_a_reason(tmp_path: Path) -> None:
    bare = {**os.environ, "LD_LIBRARY_PATH": ""}
    ran = run(bare, "--", "true", cwd=tmp_path)
    assert ran.returncode == 3
    assert "no GPU can be recorded on this node" in ran.stderr
    assert "profile classify" in ran.stderr


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ((), "nothing to record"),
        (("--",), "no program after `--`"),
        (("python", "train.py"), "watchkeeper profile -- python train.py"),
        (("--pid", "1", "--", "true"), "either a workload after `--` or --pid"),
        (("--for", "60"), "has no unit"),
        (("-i", "x", "--for", "1s"), "write indices such as 0"),
    ],
)
def test_wrong_use_exits_with_2_and_the_correct_usage(words: tuple[str, ...], usage: str, tmp_path: Path) -> None:
    ran = run(dict(os.environ), *words, cwd=tmp_path)
    assert (ran.returncode, usage in ran.stderr) == (2, True), ran.stderr


def test_a_missing_program_is_named(busy: driver.FakeNvml, tmp_path: Path) -> None:
    ran = run(busy.environment, "--", "no-such-program", cwd=tmp_path)
    assert ran.returncode == 1
    assert "no-such-program cannot be started: No such file or directory" in ran.stderr


def test_classify_prints_the_documented_json(tmp_path: Path) -> None:
    tracks = [
        loads.record(loads.LOADS[name], since=8.0 * at, label=name) for at, name in enumerate(("products", "nothing"))
    ]
    recording.write_csv(Recording((loads.joined(*tracks),)), tmp_path / "two.csv")
    ran = run(dict(os.environ), "classify", "two.csv", "--json", cwd=tmp_path)
    parts = json.loads(ran.stdout)["segments"]
    assert [(part["label"], part["class"]) for part in parts] == [("products", "compute_bound"), ("nothing", "idle")]
    assert {"label", "class", "confidence", "why"} <= set(parts[0])
    assert "compute_bound" in run(dict(os.environ), "classify", "two.csv", cwd=tmp_path).stdout


def test_classify_compares_each_segment_with_the_kind_of_its_workload(tmp_path: Path) -> None:
    names = ("products", "nothing")
    tracks = [loads.record(loads.LOADS[name], since=8.0 * at, label=name) for at, name in enumerate(names)]
    recording.write_csv(Recording((loads.joined(*tracks),)), tmp_path / "two.csv")
    arguments = ("classify", "two.csv", "--kind", "training")
    busy, idle = json.loads(run(dict(os.environ), *arguments, "--json", cwd=tmp_path).stdout)["segments"]
    assert (busy["kind"], idle["kind"]) == ("training", "training")
    # packs/profile_expectations.csv: a training job uses its tensor cores 50 to 100 % and 80 to 100 % of its power.
    met = [{row["metric"]: row["is_met"] for row in part["expected"]} for part in (busy, idle)]
    assert [(part["tensor"], part["power"]) for part in met] == [(True, True), (False, False)]
    printed = run(dict(os.environ), *arguments, cwd=tmp_path).stdout
    assert "Expected values for training in segment nothing:" in printed
    assert "the GPU does not work at full load" in printed


def test_a_metric_that_was_not_recorded_has_an_unknown_expectation(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("t,gpu_util\n" + "".join(f"{at},95\n" for at in range(40)))
    ran = run(dict(os.environ), "classify", "few.csv", "--kind", "inference", "--json", cwd=tmp_path)
    rows = {row["metric"]: (row["seen"], row["is_met"]) for row in json.loads(ran.stdout)["segments"][0]["expected"]}
    assert rows == {"gpu_util": (0.95, True), "power": (None, None), "memory_used": (None, None)}


def test_classify_compares_the_gpus_of_a_workload_with_each_other(tmp_path: Path) -> None:
    gpus = [replace(loads.record(loads.LOADS[name]), gpu=str(at)) for at, name in enumerate(("products", "nothing"))]
    recording.write_csv(Recording(tuple(gpus)), tmp_path / "two.csv")
    ran = run(dict(os.environ), "classify", "two.csv", "--kind", "multi_gpu", "--json", cwd=tmp_path)
    spreads = [
        row for part in json.loads(ran.stdout)["segments"] for row in part["expected"] if row["metric"] == "spread"
    ]
    assert spreads
    assert all(row["seen"] > 0.5 and row["remark"] == "the load of the GPUs is uneven" for row in spreads)


def test_classify_of_an_invalid_file_exits_with_1_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("t,gpu_util\n1,a\n")
    ran = run(dict(os.environ), "classify", "bad.csv", cwd=tmp_path)
    assert (ran.returncode, "line 2: gpu_util 'a' is not a number" in ran.stderr) == (1, True)
    assert "Traceback" not in ran.stderr
