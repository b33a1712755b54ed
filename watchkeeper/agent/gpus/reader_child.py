"""The reader: a child of the agent that talks to the driver, so that a driver call that hangs takes only it down.

    python -m watchkeeper.agent.gpus.reader_child FD

One JSON line each way. In: the families to read (`Family.plain`), then one question at a time, `{"read":
index, "cadences": […]}`. Out: `hello` or `broken`, one answer for each question, and `event` lines at any
time. FD is a scrap of shared memory in which the call that is being made stands, for whoever finds us
stuck. `agent.gpus.reader_link` is the other end.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
import types
from typing import Any

from watchkeeper.kit import memory
from watchkeeper.readers.nvml import events, families, session

# An event is delivered at once; this is only how often the waiting thread looks whether its parent still lives.
WAIT_MS = 5_000
# After an error of the event set, such as a GPU that was lost, it is asked again this much later.
EVENT_RETRY_SECONDS = 5.0


class CallNote:
    """Writes the name of the call that is made now where the parent can read it."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 0)
        self._padded: dict[str, bytes] = {}

    def __call__(self, call: str) -> None:
        padded = self._padded.get(call)
        if padded is None:
            size = len(self._memory)
            padded = self._padded[call] = call.encode()[:size].ljust(size, b"\0")
        self._memory[:] = padded


class Replies:
    """Lines to the parent, from two threads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._fd, line) :]


class EventThread:
    """Waits for NVML's events and sends each on."""

    def __init__(self, nvml: Any, replies: Replies) -> None:
        self._nvml = nvml
        self._replies = replies
        self._set = events.EventSet(nvml)
        self._parent = os.getppid()
        self._is_running = False

    def register(self, gpu: Any, uuid: str) -> bool:
        is_watched = self._set.register(gpu, uuid)
        if is_watched and not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, daemon=True).start()
        return is_watched

    def _run(self) -> None:
        while True:
            try:
                event = self._set.wait(WAIT_MS)
                if event is not None:
                    self._replies.send({"event": event._asdict()})
            except self._nvml.NVMLError:
                time.sleep(EVENT_RETRY_SECONDS)
            except OSError:
                os._exit(0)
            if os.getppid() != self._parent:
                # Nobody is left to read: end even if the main thread is stuck in the driver.
                os._exit(0)


def serve(replies: Replies, note: CallNote) -> None:
    """Open NVML and answer until the parent closes our standard input."""
    requests = sys.stdin.buffer
    opening = json.loads(requests.readline() or "{}")
    if not opening:
        return
    try:
        opened = session.Session(
            session.load(), [families.NvmlFamily.from_plain(row) for row in opening["families"]], note
        )
    except session.NvmlBroken as error:
        replies.send({"broken": error.reason, "text": str(error)})
        return
    watcher = _event_thread(opened, replies) if opening["events"] else None
    memory.release_startup_memory()
    replies.send({"hello": {"count": opened.count, "driver": opened.driver, "nvml": opened.library}})
    for line in requests:
        request = json.loads(line)
        index = request["read"]
        reading = opened.read(index, [families.Cadence(name) for name in request["cadences"]])
        answer = {"gpu": index, **reading.plain()}
        if reading.identity is not None and watcher is not None:
            note("nvmlDeviceRegisterEvents")
            answer["events"] = watcher.register(opened.gpus()[index].handle, reading.identity["uuid"])
        note("")
        replies.send(answer)


def _event_thread(opened: session.Session, replies: Replies) -> EventThread | None:
    try:
        return EventThread(opened.nvml, replies)
    except opened.nvml.NVMLError:
        return None


def stub_ctypes_util() -> None:
    """Keep ctypes.util out: pynvml imports `find_library` and never calls it, and it brings 1.4 MiB along."""
    finder = types.ModuleType("ctypes.util")
    finder.__dict__["find_library"] = lambda _: None
    sys.modules.setdefault("ctypes.util", finder)


def main() -> None:
    stub_ctypes_util()
    replies = Replies(os.dup(sys.stdout.fileno()))
    # Whatever a library prints must not land between our lines.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(replies, CallNote(int(sys.argv[1])))
    # Not sys.exit: closing NVML may hang, and the kernel cleans up as well.
    os._exit(0)


if __name__ == "__main__":
    main()
