"""The reader process: calls the NVIDIA driver for the agent, so that a hung driver call blocks only this process.

    python -m watchkeeper.agent.gpus.reader_child FD

In, as JSON lines: the families to read (`NvmlFamily.plain`), then one request at a time, `{"read": index, "cadences":
[…]}`. Out: `hello` or `broken`, one answer for each request, and `event` lines at any time. FD is shared memory with
the name of the current driver call: the agent reads there which call hung.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
import types
from contextlib import suppress
from typing import Any

from watchkeeper.kit import memory
from watchkeeper.readers.nvml import events, families, session

# Events are delivered at once; this is how often the waiting thread checks that its parent still runs.
WAIT_MS = 5_000
# Delay after an error of the event set, such as a lost GPU.
EVENT_RETRY_SECONDS = 5.0


class CallRecorder:
    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 0)
        self._padded: dict[str, bytes] = {}

    def __call__(self, call: str) -> None:
        padded = self._padded.get(call)
        if padded is None:
            size = len(self._memory)
            padded = self._padded[call] = call.encode()[:size].ljust(size, b"\0")
        self._memory[:] = padded


class ReplyWriter:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]


class EventThread:
    """Waits for NVML events and sends them to the parent."""

    def __init__(self, nvml: Any, replies: ReplyWriter) -> None:
        self._nvml = nvml
        self._replies = replies
        self._event_set = events.EventSet(nvml)
        self._parent = os.getppid()
        self._is_running = False

    def register(self, gpu: Any, uuid: str) -> bool:
        is_watched = self._event_set.register(gpu, uuid)
        if is_watched and not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, daemon=True).start()
        return is_watched

    def _run(self) -> None:
        while True:
            try:
                event = self._event_set.wait(WAIT_MS)
                if event is not None:
                    self._replies.send({"event": event._asdict()})
            except self._nvml.NVMLError:
                time.sleep(EVENT_RETRY_SECONDS)
            except OSError:
                os._exit(0)
            if os.getppid() != self._parent:
                # The parent has exited: exit too, even if the main thread is stuck in the driver.
                os._exit(0)


def serve(replies: ReplyWriter, record_call: CallRecorder) -> None:
    """Open NVML and answer requests until the parent closes standard input."""
    requests = sys.stdin.buffer
    settings = json.loads(requests.readline() or "{}")
    if not settings:
        return
    try:
        nvml_session = session.Session(
            session.load(), [families.NvmlFamily.from_plain(row) for row in settings["families"]], record_call
        )
    except session.NvmlBroken as error:
        replies.send({"broken": error.reason, "text": str(error)})
        return
    event_thread: EventThread | None = None
    if settings["events"]:
        with suppress(nvml_session.nvml.NVMLError):
            event_thread = EventThread(nvml_session.nvml, replies)
    memory.release_startup_memory()
    replies.send({"hello": {"count": nvml_session.count, "driver": nvml_session.driver, "nvml": nvml_session.library}})
    for line in requests:
        request = json.loads(line)
        index = request["read"]
        reading = nvml_session.read(index, [families.Cadence(name) for name in request["cadences"]])
        answer = {"gpu": index, **reading.plain()}
        if reading.identity is not None and event_thread is not None:
            record_call("nvmlDeviceRegisterEvents")
            answer["events"] = event_thread.register(nvml_session.gpus()[index].handle, reading.identity["uuid"])
        record_call("")
        replies.send(answer)


def stub_ctypes_util() -> None:
    """Replace ctypes.util, which costs 1.4 MiB: pynvml imports its `find_library` and never calls it."""
    stub = types.ModuleType("ctypes.util")
    stub.__dict__["find_library"] = lambda _: None
    sys.modules.setdefault("ctypes.util", stub)


def main() -> None:
    stub_ctypes_util()
    replies = ReplyWriter(os.dup(sys.stdout.fileno()))
    # Output that a library prints must not mix with the JSON lines.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(replies, CallRecorder(int(sys.argv[1])))
    # Not sys.exit: closing NVML may hang, and the kernel frees its resources anyway.
    os._exit(0)


if __name__ == "__main__":
    main()
