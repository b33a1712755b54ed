"""Read the WAL ahead in another process, while the hub is still importing its modules.

`start_reading` forks the reader as soon as the samples directory is known: a copy of the hub that has only NumPy and
one thread, and decompresses on another core. `read` gets batches as files in memory, whose arrays go into the head
without another copy; if anything fails (the WAL has grown, the reader was killed), the hub reads the rest of the WAL
itself.
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

# A smaller WAL is read faster than another process starts.
MIN_WAL_BYTES = 4 << 20
# The limit of batches that are not received yet: 1,000 GPUs have 100 MB in two hours.
MAX_PENDING_BYTES = 128 << 20
# The size of the pickle, and the number of buffers after it.
PACKET = struct.Struct("<QQ")
SIZE = struct.Struct("<Q")
ACKNOWLEDGED = b"t"
# Modules to run before the fork, because the other process is a copy of this one.
PRELOADED_MODULES = ("watchkeeper.store.wal.wal", "watchkeeper.store.codec", "watchkeeper.kit.memory")
# One reader for each store; a hub has one.
_reader_by_path: dict[Path, _ReaderProcess] = {}


def start_reading(path: Path, *, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
    """Start to read the WAL of the store in a directory, if it is large enough."""
    sizes = _file_sizes(path)
    if sum(sizes.values()) >= MIN_WAL_BYTES and path not in _reader_by_path:
        deque(lazy_imports.run_pending(*PRELOADED_MODULES), maxlen=0)
        with contextlib.suppress(OSError):
            _reader_by_path[path] = _ReaderProcess(path, max_pending_bytes)


def run_while_reading(path: Path, steps: Iterator[object]) -> None:
    """Run these steps while `read` waits for the other process; without another process, run them now."""
    if path in _reader_by_path:
        _reader_by_path[path].steps = steps
    else:
        deque(steps, maxlen=0)


def read(path: Path, *, since_ms: int) -> Iterator[ReplayBatch | SegmentResult]:
    """The batches of `wal_reader.read` for a store's WAL, from the other process if possible."""
    received_count, reader = 0, _reader_by_path.pop(path, None)
    if reader is not None:
        with contextlib.closing(reader):
            try:
                if reader.receive() == (since_ms, _file_sizes(path)):
                    for item in iter(reader.receive, None):
                        received_count += 1
                        yield item
                    return
            except EOFError as error:
                log.warning("WAL prefetch failed", extra=fields(batches=received_count, error=error))
    yield from itertools.islice(wal_reader.read(path / "wal", since_ms=since_ms), received_count, None)


class _ReaderProcess:
    def __init__(self, path: Path, max_pending_bytes: int) -> None:
        self.steps: Iterator[object] = iter(())
        self._socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        with child_socket:
            self.process = os.fork()
            if self.process == 0:
                self._socket.close()
                _read_ahead_and_end(path, _Sender(child_socket, max_pending_bytes))

    def receive(self) -> Any:
        """The next message; EOFError if the process has ended."""
        while not self._poll.poll(0) and next(self.steps, self) is not self:
            pass
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, PACKET.size, 1)
            if not files:
                raise EOFError("it ended before the end of the WAL")
            with open(files[0], "rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._socket.send(ACKNOWLEDGED)
        except OSError as error:
            raise EOFError(str(error)) from error
        pickle_size, count = PACKET.unpack(packet)
        buffers, offset = [], pickle_size + count * SIZE.size
        for (size,) in SIZE.iter_unpack(content[pickle_size:offset]):
            buffers.append(content[offset : offset + size])
            offset += size + _padding(size)
        return pickle.loads(content[:pickle_size], buffers=buffers)  # noqa: S301 (by our own process)

    def close(self) -> None:
        self._socket.close()
        # In a thread, because the system needs ten milliseconds to free its memory.
        threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        # If children are reaped automatically, it is already gone.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


class _Sender:
    """The connection to the hub, in the reader process."""

    def __init__(self, hub_socket: socket.socket, max_pending_bytes: int) -> None:
        self._socket, self._max_pending_bytes = hub_socket, max_pending_bytes
        self._pending_sizes: deque[int] = deque()

    def send(self, message: object) -> None:
        """Send a message, and wait while too many bytes are pending; OSError if the hub has ended."""
        buffers: list[pickle.PickleBuffer] = []
        pickle_bytes = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        pickle_bytes += bytes(_padding(len(pickle_bytes)))
        parts = [buffer.raw() for buffer in buffers]
        with open(os.memfd_create("log"), "wb") as file:
            file.write(pickle_bytes)
            file.write(b"".join(SIZE.pack(part.nbytes) for part in parts))
            for part in parts:
                file.write(part)
                file.write(bytes(_padding(part.nbytes)))
            file.flush()
            self._pending_sizes.append(file.tell())
            socket.send_fds(self._socket, [PACKET.pack(len(pickle_bytes), len(parts))], [file.fileno()])
        self.wait(self._max_pending_bytes)

    def wait(self, max_pending_bytes: int) -> None:
        """Wait until at most `max_pending_bytes` are pending."""
        while sum(self._pending_sizes) > max_pending_bytes:
            if not self._socket.recv(len(ACKNOWLEDGED)):
                raise BrokenPipeError
            self._pending_sizes.popleft()


def _padding(size: int) -> int:
    """How many bytes are missing to the next multiple of eight."""
    return -size % SIZE.size


def _file_sizes(path: Path) -> dict[str, int]:
    """The size of each WAL file of a store; empty if they cannot be listed, which opening the store reports."""
    with contextlib.suppress(OSError):
        return {entry.name: entry.stat().st_size for entry in os.scandir(path / "wal")}
    return {}


def _read_ahead_and_end(path: Path, sender: _Sender) -> NoReturn:
    """Run the reader process, and exit without the cleanup of the hub."""
    try:
        # Objects of the hub are never garbage here, and a collection would copy their memory pages.
        gc.disable()
        memory.keep_query_buffers()
        _read_ahead(path, sender)
    except (ConnectionError, KeyboardInterrupt):
        # The hub has ended, or does not need the rest.
        pass
    except BaseException:
        log.exception("WAL prefetch failed")
    finally:
        os._exit(0)


def _read_ahead(path: Path, sender: _Sender) -> None:
    # From the names of blocks; if a block is damaged, the hub needs more and reads the WAL itself.
    ends_ms = [int(block.stem.rpartition("-")[2]) for block in (path / "blocks").glob(f"*{block_writer.SUFFIX}")]
    since_ms = max(ends_ms, default=-columns.NEVER_MS)
    sender.send((since_ms, _file_sizes(path)))
    for item in wal_reader.read(path / "wal", since_ms=since_ms):
        sender.send(item)
    sender.send(None)
    # Exiting before the hub has received everything would lose the rest.
    sender.wait(0)
