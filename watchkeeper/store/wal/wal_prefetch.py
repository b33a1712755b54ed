"""A log that a process of its own reads ahead, while the hub is still importing what it is made of.

`begin` starts the reader as soon as it is known where samples lie: a copy of the hub, which has nothing yet but
NumPy and one thread. `read` then has most of the log at once, and goes on with `meanwhile` while there is nothing to
take. Reading takes decompression and memory that nobody needs afterwards, and all of that is on another core. A batch
comes as a file in memory, whose arrays go into the head without a copy in between; the reader waits while too much is
not taken yet. Whatever is wrong with it (the log grew, it was killed), the log is read here, from where it was left.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from watchkeeper.kit import lazy_imports, memory
from watchkeeper.kit.logs import fields
from watchkeeper.store import columns
from watchkeeper.store.blocks import block_writer
from watchkeeper.store.wal import wal_reader

if TYPE_CHECKING:
    from watchkeeper.store.wal.wal_reader import ReplayBatch, SegmentResult

log = logging.getLogger(__name__)

# Below this the log is read before another process has begun.
WORTH_BYTES = 4 << 20
# Read ahead and not taken yet: 1,000 GPUs have 100 MB in two hours.
MOST_BYTES = 128 << 20
# Bytes of the pickle, and of all buffers behind it.
PACKET = struct.Struct("<QQ")
SIZE = struct.Struct("<Q")
TAKEN = b"t"
# The other process is a copy of this one, and has what was run here.
NEEDED = ("watchkeeper.store.wal.wal", "watchkeeper.store.codec", "watchkeeper.kit.memory")
# One reader for each store; a hub has one.
_begun: dict[Path, _ReaderProcess] = {}


def start_reading(path: Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Start to read the log of the store in a directory, if it is long enough to be worth it."""
    sizes = _sizes(path)
    if sum(sizes.values()) >= WORTH_BYTES and path not in _begun:
        deque(lazy_imports.run_pending(*NEEDED), maxlen=0)
        with contextlib.suppress(OSError):
            _begun[path] = _ReaderProcess(path, most_bytes)


def run_while_reading(path: Path, steps: Iterator[object]) -> None:
    """Take these steps while `read` waits for the other process, as far as there is time; where there is none, now."""
    if path in _begun:
        _begun[path].steps = steps
    else:
        deque(steps, maxlen=0)


def read(path: Path, *, since_ms: int) -> Iterator[ReplayBatch | SegmentResult]:
    """What `wal_reader.read` finds in a store's log; as far as possible what was read ahead."""
    count, reader = 0, _begun.pop(path, None)
    if reader is not None:
        with contextlib.closing(reader):
            try:
                if reader.receive() == (since_ms, _sizes(path)):
                    for read in iter(reader.receive, None):
                        count += 1
                        yield read
                    return
            except EOFError as error:
                log.warning("What reads the log ahead has ended", extra=fields(batches=count, error=error))
    yield from itertools.islice(wal_reader.read(path / "wal", since_ms=since_ms), count, None)


class _ReaderProcess:
    """The other process, seen from the hub."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.steps: Iterator[object] = iter(())
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        with theirs:
            self.process = os.fork()
            if self.process == 0:
                self._socket.close()
                _read_ahead_and_end(path, _Sender(theirs, most_bytes))

    def receive(self) -> Any:
        """What was sent next; EOFError if nothing will come."""
        while not self._has_something() and next(self.steps, self) is not self:
            pass
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, PACKET.size, 1)
            if not files:
                raise EOFError("it was not at its end")
            with open(files[0], "rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._socket.send(TAKEN)
        except OSError as error:
            raise EOFError(str(error)) from error
        pickled, count = PACKET.unpack(packet)
        buffers, at = [], pickled + count * SIZE.size
        for (size,) in SIZE.iter_unpack(content[pickled:at]):
            buffers.append(content[at : at + size])
            at += size + _gap(size)
        return pickle.loads(content[:pickled], buffers=buffers)  # noqa: S301 (by our own process)

    def _has_something(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self._socket.close()
        # Its memory takes the system ten milliseconds; nobody waits for that.
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        # Where nobody waits for children, the system has done so.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


class _Sender:
    """The hub, seen from the other process."""

    def __init__(self, connected: socket.socket, most_bytes: int) -> None:
        self._socket, self._most_bytes = connected, most_bytes
        self._untaken: deque[int] = deque()

    def send(self, what: object) -> None:
        """Send it, and wait while too much of what was sent is not taken; OSError if nobody is there."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(what, protocol=5, buffer_callback=buffers.append)
        pickled += bytes(_gap(len(pickled)))
        parts = [buffer.raw() for buffer in buffers]
        with open(os.memfd_create("log"), "wb") as file:
            file.write(pickled)
            file.write(b"".join(SIZE.pack(part.nbytes) for part in parts))
            for part in parts:
                file.write(part)
                file.write(bytes(_gap(part.nbytes)))
            file.flush()
            self._untaken.append(file.tell())
            socket.send_fds(self._socket, [PACKET.pack(len(pickled), len(parts))], [file.fileno()])
        self.wait(self._most_bytes)

    def wait(self, most_bytes: int) -> None:
        """Until no more than so much is not taken."""
        while sum(self._untaken) > most_bytes:
            if not self._socket.recv(len(TAKEN)):
                raise BrokenPipeError
            self._untaken.popleft()


def _gap(size: int) -> int:
    """Bytes up to where a number of eight bytes may begin."""
    return -size % SIZE.size


def _sizes(path: Path) -> dict[str, int]:
    """The files of a store's log, and how long each is; where they cannot be seen, `claim` says why."""
    with contextlib.suppress(OSError):
        return {entry.name: entry.stat().st_size for entry in os.scandir(path / "wal")}
    return {}


def _read_ahead_and_end(path: Path, sender: _Sender) -> NoReturn:
    """All that the other process does; nothing of the hub's own end is for it."""
    try:
        # What it has of the hub is never garbage; looking at it would copy it.
        gc.disable()
        memory.keep_query_buffers()
        _read_ahead(path, sender)
    except (ConnectionError, KeyboardInterrupt):
        # The hub has ended, or has found that it needs something else.
        pass
    except BaseException:
        log.exception("The log cannot be read ahead")
    finally:
        os._exit(0)


def _read_ahead(path: Path, sender: _Sender) -> None:
    # By their names: where a block is damaged, what is read ahead is not what will be asked for.
    ends_ms = [int(block.stem.rpartition("-")[2]) for block in (path / "blocks").glob(f"*{block_writer.SUFFIX}")]
    since_ms = max(ends_ms, default=-columns.NEVER_MS)
    sender.send((since_ms, _sizes(path)))
    for read in wal_reader.read(path / "wal", since_ms=since_ms):
        sender.send(read)
    sender.send(None)
    # Whoever leaves before the other has read takes the rest along.
    sender.wait(0)
