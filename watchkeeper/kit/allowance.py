"""The time and memory that one query may use.

`hub.samples` gives the queries of users a deadline, and cancels those whose client has disconnected; the embedded
engine limits the memory of every evaluation. Both apply to the thread that evaluates, so that loops deep in the store
and in the evaluator need no parameter to check them. Without a deadline or a limit, checks do nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import TypeVar

from watchkeeper import errors

T = TypeVar("T")

# Items between two checks of a loop over label sets: about 10 ms.
CHECK_INTERVAL = 4096
MEBIBYTE = 1 << 20


class _Thread(threading.local):
    deadline: Deadline | None = None
    memory: Memory | None = None


_thread = _Thread()


class Deadline:
    """When a query must end; another thread may end it at once with `cancel`."""

    def __init__(self, seconds: float, what: str = "expression evaluation") -> None:
        self._ends_at = time.monotonic() + seconds
        self._problem = f"query timed out in {what} after {seconds:.3g} s"

    @property
    def seconds_left(self) -> float:
        return self._ends_at - time.monotonic()

    def cancel(self) -> None:
        self._problem, self._ends_at = "the query was cancelled: its client disconnected", -math.inf

    def check(self) -> None:
        if time.monotonic() > self._ends_at:
            raise errors.QueryTimeout(self._problem)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply to this thread."""
        outer, _thread.deadline = _thread.deadline, self
        try:
            yield
        finally:
            _thread.deadline = outer


@contextmanager
def tighter_deadline(seconds: float, what: str) -> Iterator[None]:
    """If this thread has a deadline, it has one after so many seconds until the block ends."""
    deadline = _thread.deadline
    if deadline is None:
        yield
        return
    deadline.check()
    with Deadline(min(seconds, deadline.seconds_left), what).applied():
        yield


class Memory:
    """The memory that an evaluation holds, as estimated from its results; None means no limit.

    Exhausted memory of the machine is an error of the query too, where the system reports it.
    """

    __slots__ = ("_limit", "_outer", "held_bytes", "label_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit = math.inf if limit_bytes is None else limit_bytes
        self._outer: Memory | None = None
        # Results that later steps release, and labels, which stay until the evaluation ends.
        self.held_bytes = 0
        self.label_bytes = 0

    def require(self, size: int) -> None:
        """Raise QueryLimit unless this much more memory is allowed."""
        needed = self.held_bytes + self.label_bytes + size
        if needed > self._limit:
            raise errors.QueryLimit(
                f"the query needs {needed / MEBIBYTE:,.0f} MiB of memory or more,"
                f" the limit is {self._limit / MEBIBYTE:,.0f} MiB",
                remedy="Select fewer series, a shorter time range or a larger step,"
                " or raise `query.max_query_mebibytes`",
            )

    def hold(self, size: int) -> None:
        """Set the size of the results that later steps release."""
        self.held_bytes = size
        if size + self.label_bytes > self._limit:
            self.require(0)

    def __enter__(self) -> Memory:
        """Apply to this thread, and convert MemoryError to QueryLimit."""
        self._outer, _thread.memory = _thread.memory, self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _thread.memory = self._outer
        if isinstance(error, MemoryError):
            raise errors.QueryLimit(
                "the query needs more memory than this machine has left",
                remedy="Select fewer series, a shorter time range or a larger step",
            ) from error


def check() -> None:
    """Raise QueryTimeout if the deadline of this thread has passed, or its query was cancelled."""
    if _thread.deadline is not None:
        _thread.deadline.check()


def require(size: int) -> None:
    """Raise QueryLimit unless the evaluation may use this many more bytes for a moment."""
    if _thread.memory is not None:
        _thread.memory.require(size)


def use_labels(size: int) -> None:
    """Count bytes of labels that the evaluation creates."""
    memory = _thread.memory
    if memory is not None:
        memory.label_bytes += size
        memory.require(0)


def used_label_bytes() -> int:
    return 0 if _thread.memory is None else _thread.memory.label_bytes


def watch(items: Iterable[T]) -> Iterator[T]:
    """The items, with a check of the deadline from time to time."""
    remaining = iter(items)
    while batch := list(islice(remaining, CHECK_INTERVAL)):
        check()
        yield from batch
