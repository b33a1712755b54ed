"""GPU context in a program's logs: present when the driver answers, and never in the way when it hangs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import waiting
from tests.support.fake_nvml import driver
from watchkeeper.instrument import gpu_reader, log_context
from watchkeeper.instrument.log_context import GpuContext, GpuState, is_selected, parse_visible_devices


@pytest.fixture
def context(fake: driver.FakeNvml) -> Iterator[GpuContext]:
    made = GpuContext(every_seconds=0.1, environment=fake.environment)
    yield made
    made.close()


def record(context: GpuContext) -> Any:
    made = logging.LogRecord("train", logging.INFO, __file__, 1, "step %d", (5,), None)
    assert context.filter(made) is True
    return made


def until(context: GpuContext, true: Callable[[Any], object]) -> Any:
    def made() -> Any:
        return latest if true(latest := record(context)) else None

    return waiting.until(made, what=lambda: f"another context than {record(context).gpu_context!r}")


def test_a_record_has_the_state_of_each_gpu(context: GpuContext, fake: driver.FakeNvml) -> None:
    fake.tell(1, Temperature=61)
    made = until(context, lambda made: made.gpu_states and made.gpu_states[1]["temperature_celsius"] == 61)
    assert [state["index"] for state in made.gpu_states] == [0, 1]
    assert made.gpu_context.startswith("gpu0 37 °C 0 % 129 W 0 MiB, gpu1 61 °C")
    json.dumps(made.gpu_states)


def test_xids_are_counted_from_the_start_of_the_program(context: GpuContext, fake: driver.FakeNvml) -> None:
    until(context, lambda made: made.gpu_states and made.gpu_states[0].get("xid_count") == 0)
    fake.raise_event(0, 8, 31)
    made = until(context, lambda made: made.gpu_states[0]["xid_count"] == 1)
    assert "1 Xid" in made.gpu_context


def test_a_value_that_a_gpu_does_not_report_is_absent_and_never_zero(
    context: GpuContext, fake: driver.FakeNvml
) -> None:
    until(context, lambda made: made.gpu_states)
    fake.tell(0, PowerUsage=driver.NOT_SUPPORTED)
    made = until(context, lambda made: "power_watts" not in made.gpu_states[0])
    assert "power_watts" in made.gpu_states[1]


def test_a_hung_driver_delays_no_log_record_and_is_reported(
    context: GpuContext, fake: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_context, "FIRST_READING_SECONDS", 0.0)
    until(context, lambda made: made.gpu_states)
    fake.tell(0, Temperature=driver.HANG)
    seconds = []

    def unknown() -> Any:
        began = time.monotonic()
        made = record(context)
        seconds.append(time.monotonic() - began)
        return made if "the driver has not answered for" in made.gpu_context else None

    assert waiting.until(unknown).gpu_states == []
    # The driver hangs for as long as the test; a record that waited for it would have been the last.
    assert max(seconds) < 10.0


def test_without_a_driver_the_reason_is_on_the_record(tmp_path: Path) -> None:
    context = GpuContext(every_seconds=0.1, environment={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path)})
    made = until(context, lambda made: "not read yet" not in made.gpu_context)
    assert made.gpu_context.startswith("GPUs unknown: NVML reports")
    context.close()
    assert record(context).gpu_context.startswith("GPUs unknown")


def test_a_reader_that_cannot_start_affects_no_log_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    context = GpuContext()
    assert record(context).getMessage() == "step 5"
    context.close()


def test_a_forked_worker_reads_the_same_states_and_does_not_stop_the_reader(context: GpuContext) -> None:
    until(context, lambda made: made.gpu_states)
    child = os.fork()
    if child == 0:
        try:
            states = record(context).gpu_states
            context.close()
            os._exit(0 if len(states) == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert context._child is not None
    assert context._child.poll() is None


def test_threads_that_log_at_the_same_time_share_one_reader(
    fake: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, started = GpuContext(every_seconds=0.1, environment=fake.environment), []
    start = context._start
    monkeypatch.setattr(context, "_start", lambda now: (started.append(now), start(now)))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: record(context), range(200)))
    assert len(started) == 1
    context.close()


def test_the_reader_ends_with_a_program_that_is_killed(fake: driver.FakeNvml) -> None:
    program = (
        "import logging, time\nfrom watchkeeper.instrument.log_context import GpuContext\n"
        "context = GpuContext(every_seconds=0.1)\n"
        "context.filter(logging.makeLogRecord({}))\nprint(context._child.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=fake.environment, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        reader = Path("/proc") / running.stdout.readline().decode().strip()
        assert reader.exists()
        running.kill()
    waiting.until(lambda: not is_alive(reader), what="the reader ends with its program")


def is_alive(process: Path) -> bool:
    try:
        return "Z" not in (process / "stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, None),
        ("0,1", ["0", "1"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("GPU-8a,3", ["GPU-8a", "3"]),
        ("MIG-8a1b", None),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text: str | None, words: list[str] | None) -> None:
    assert parse_visible_devices(text) == words


def test_a_gpu_is_selected_by_index_or_by_the_start_of_its_uuid() -> None:
    state = GpuState(3, "GPU-8a11")
    assert [is_selected(state, devices) for devices in (None, ["3"], ["GPU-8a"], ["8"], [])] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_memory_that_is_being_written_is_not_read() -> None:
    import mmap

    with mmap.mmap(-1, gpu_reader.MEMORY_BYTES) as memory:
        assert gpu_reader.read(memory) is None
        gpu_reader.write(memory, {"at": 1.0})
        assert gpu_reader.read(memory) == {"at": 1.0}
        memory[gpu_reader.HEADER.size] = ord("[")
        assert gpu_reader.read(memory) is None
        gpu_reader.write(memory, {"at": "x" * gpu_reader.MEMORY_BYTES})
        assert gpu_reader.read(memory) is None


def test_importing_the_filter_imports_nothing_else_of_watchkeeper() -> None:
    program = (
        "import sys\nimport watchkeeper.instrument.log_context\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('watchkeeper', 'pynvml'))))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = {name.removeprefix("watchkeeper") for name in ran.stdout.split()}
    assert names == {"", ".instrument", *(f".instrument.{own}" for own in ("gpu_reader", "log_context"))}
