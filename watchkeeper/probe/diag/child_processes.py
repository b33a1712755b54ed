"""Programs that do the dangerous part: started, asked and heard over pipes, each in lines of JSON, and ended at once.

A driver that hangs cannot be interrupted in the process that asked it, so whatever touches a GPU is a child:
`gpu_work` for each GPU, `diag_watch` for the readings. `Children.hear` waits for the next line of any of them;
`diag_work` decides what it means. A child is in a session of its own, so that Ctrl-C reaches the
command alone, which then ends them all.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
# Behind everything that the interpreter has itself: in front, our packages would hide those of an environment with
# another Python, NumPy first of all.
LAUNCH = """
import runpy, sys
sys.path.append(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)
"""
# A line longer than this is no answer of ours.
MAX_LINE_BYTES = 1 << 20
STDERR_BYTES = 64 << 10
AFTER_KILL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """How to start a child. `python` is the interpreter whose environment has torch; `environment` is added to ours."""

    arguments: tuple[str, ...]
    python: str = sys.executable
    environment: Mapping[str, str] | None = None

    def command(self) -> list[str]:
        return [self.python, *self.arguments]


def module(name: str, *arguments: str, python: str = sys.executable) -> ChildProgram:
    """A module of `probe` as a program, with whichever interpreter."""
    return ChildProgram(("-u", "-c", LAUNCH, str(ROOT), f"watchkeeper.probe.{name}", *arguments), python)


@dataclass(frozen=True, slots=True)
class ChildMessage:
    """One answer; `words` None: the child has ended, and `why` says how."""

    child: str
    words: Mapping[str, Any] | None
    why: str = ""


class Child:
    """One running program."""

    def __init__(self, name: str, program: ChildProgram) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = b""
        self._popen = subprocess.Popen(
            program.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            env={**os.environ, **(program.environment or {})},
        )

    @property
    def output(self) -> IO[bytes]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    @property
    def pid(self) -> int:
        return self._popen.pid

    def tell(self, words: Mapping[str, Any]) -> None:
        """A child that is gone does not hear; that it is gone is heard from its output."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps(words).encode() + b"\n")
            self._popen.stdin.flush()

    def lines(self) -> Iterator[Mapping[str, Any]] | None:
        """What can be read now; None at the end of the output."""
        block = os.read(self.output.fileno(), 1 << 16)
        if not block:
            return None
        *whole, self._rest = (self._rest + block).split(b"\n")
        self._rest = self._rest[-MAX_LINE_BYTES:]
        return filter(None, map(_read, whole))

    def end(self) -> None:
        """Kill it, and leave it behind if it sits in the kernel."""
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(AFTER_KILL_SECONDS)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._stderr.close()

    def how_it_ended(self) -> str:
        """Exit status or signal, and the last line of its complaint."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(AFTER_KILL_SECONDS)
        code = self._popen.returncode
        how = "it closed its output" if code is None else f"signal {-code}" if code < 0 else f"exit status {code}"
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_BYTES))
        said = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {said[-1][:300]}" if said else how


def _read(line: bytes) -> Mapping[str, Any] | None:
    with contextlib.suppress(ValueError):
        words = json.loads(line)
        if isinstance(words, dict):
            return words
    return None


class Children:
    """All children of a run; leaving the `with` ends them, whatever happened."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, Child] = {}
        self._heard: list[ChildMessage] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.end(name)
        self._selector.close()

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._running)

    def start(self, name: str, program: ChildProgram) -> None:
        try:
            child = Child(name, program)
        except OSError as error:
            self._heard.append(ChildMessage(name, None, f"{program.python}: {error.strerror}"))
            return
        self._running[name] = child
        self._selector.register(child.output, selectors.EVENT_READ, child)

    def tell(self, name: str, words: Mapping[str, Any]) -> None:
        self._running[name].tell(words)

    def end(self, name: str) -> None:
        child = self._running.pop(name, None)
        if child is not None:
            self._selector.unregister(child.output)
            child.end()

    def hear(self, until: float) -> ChildMessage | None:
        """The next line of any child, or None when the monotonic clock has come to `until`."""
        while not self._heard:
            left = until - time.monotonic()
            if left <= 0 or not self._running:
                if left > 0:
                    time.sleep(min(left, 0.05))
                return None
            for key, _ in self._selector.select(left):
                self._take(key.data)
        return self._heard.pop(0)

    def _take(self, child: Child) -> None:
        lines = child.lines()
        if lines is not None:
            self._heard += [ChildMessage(child.name, words) for words in lines]
            return
        why = child.how_it_ended()
        self.end(child.name)
        self._heard.append(ChildMessage(child.name, None, why))
