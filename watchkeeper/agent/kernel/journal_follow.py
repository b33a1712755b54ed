"""Following the kernel's lines in systemd's journal, through `journalctl --follow`.

For machines on which the agent may not read /dev/kmsg, or whose journal reaches further back. journalctl itself
copes with rotated files and a restarted journald; when it ends, it is started again behind the last line that
mattered. `agent.kernel.kernel_sources` starts this; the records are those that `kernel_follow.KernelEvents` reads.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

from watchkeeper.agent.kernel import kernel_follow
from watchkeeper.agent.kernel.kernel_position import Position, sequence_of
from watchkeeper.agent.kernel.streaming_process import StreamingProcess
from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import backoff, clock, logs
from watchkeeper.readers.logs import journal_entry

log = logging.getLogger(__name__)

SOURCE = "journald"
PAUSES = backoff.Backoff(1.0, 60.0)
# A message with bytes that are no text is a list of numbers, in which no needle can be found.
LISTED = (b'"MESSAGE":[', b'"MESSAGE" : [')
# What journalctl says on its standard error when it will never show a kernel line.
HOPELESS = re.compile(
    r"insufficient permissions|not seeing messages from (?:other users and )?the system"
    r"|No journal files were|specified boot .*not available",
    re.IGNORECASE,
)
BAD_CURSOR = re.compile(r"[Ff]ailed to (?:seek to|parse|get) .*cursor|[Ii]nvalid cursor")


@dataclass(frozen=True, slots=True)
class JournalSource:
    """This machine's journal, from a position on; `directory` None is where journalctl itself looks."""

    node: str
    boot: str
    position: Position = field(default_factory=Position)
    directory: Path | None = None
    needles: tuple[bytes, ...] = ()
    program: str = "journalctl"
    monotonic: Callable[[], float] = monotonic

    def arguments(self, cursor: str) -> list[str]:
        """`-k` is this boot's kernel lines; without `--no-tail` only the last ten would come first."""
        where = [] if self.directory is None else [f"--directory={self.directory}"]
        after = [f"--after-cursor={cursor}"] if cursor else []
        return [self.program, "-k", "-f", "-o", "json", "--no-tail", "--no-pager", *where, *after]


async def follow_journal(
    source: JournalSource, *, time: clock.Clock
) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every kernel line of this boot behind the position, for ever; CollectError where that can never work."""
    cursor, failures = source.position.mark, 0
    wanted = (*source.needles, *LISTED) if source.needles else ()
    while True:
        child = _start(source.arguments(cursor))
        complaint, status = "", None
        try:
            async for line in child.lines(wanted):
                entry = None if line is None else journal_entry.read_entry(line)
                if entry is None:
                    _refuse_if_hopeless(child.complaint())
                    continue
                cursor, failures = entry.cursor, 0
                record = _record(entry, source, now=time.now())
                if record is not None:
                    yield record
            complaint = child.complaint()
        finally:
            status = child.close()
        _refuse_if_hopeless(complaint)
        if BAD_CURSOR.search(complaint):
            # The journal was emptied: what it holds now is all there is, and ids stay what they were.
            cursor = ""
        failures += 1
        pause = PAUSES.delay_seconds(failures)
        log.warning(
            "journalctl ended and is started again",
            extra=logs.fields(status=status, said=quote(complaint), retry_seconds=pause),
        )
        await time.sleep(pause)


def _start(arguments: list[str]) -> StreamingProcess:
    try:
        return StreamingProcess(arguments)
    except OSError as error:
        raise CollectError(
            f"{arguments[0]} cannot be started: {error.strerror}",
            where="--kernel-log journald",
            remedy="Install systemd's journalctl, or use --kernel-log kmsg",
        ) from error


def _refuse_if_hopeless(complaint: str) -> None:
    if HOPELESS.search(complaint):
        raise CollectError(
            f"the journal cannot be read: {quote(complaint.splitlines()[0])}",
            where="--kernel-log journald",
            remedy="Run as root or as a member of the group systemd-journal, or use --kernel-log kmsg",
        )


def _record(
    entry: journal_entry.JournalEntry, source: JournalSource, *, now: datetime
) -> kernel_follow.KernelRecord | None:
    """The entry in the shape of a /dev/kmsg record; None for what another source has told already."""
    if entry.since_boot_us <= source.position.since_boot_us and not source.position.mark:
        return None
    # Facility 1 is user space: what nobody signs for is not the kernel's word.
    facility = 1 if entry.facility is None else entry.facility
    sequence = sequence_of(entry.since_boot_us, entry.text)
    age_seconds = max(0.0, source.monotonic() - entry.since_boot_us / 1e6)
    return kernel_follow.KernelRecord(
        source.node,
        source.boot,
        f"{facility << 3 | entry.level},{sequence},{entry.since_boot_us},-;{entry.text}",
        now - timedelta(seconds=age_seconds),
        seq=sequence,
        source=SOURCE,
        mark=entry.cursor,
    )
