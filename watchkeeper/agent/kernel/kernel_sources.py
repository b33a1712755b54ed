"""Which of this machine's kernel logs is followed: /dev/kmsg, systemd's journal, or a file that syslog writes.

The agent names one with `--kernel-log`; all three give the same records. `kmsg` is the fastest and the only one
in which no program can pass for the kernel; the others are for agents that may not read it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.agent.kernel import file_follow, journal_follow, kernel_follow
from watchkeeper.agent.kernel.kernel_position import Position
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.readers.logs import kernel_log

KMSG = "kmsg"
JOURNALD = "journald"
# Where journald keeps its files, the lasting ones first.
JOURNALS = ("var/log/journal", "run/log/journal")


@dataclass(frozen=True, slots=True)
class KernelLogSettings:
    """One machine's kernel log; `choice` is `kmsg`, `journald`, or a file's path; `root` is where its root lies."""

    choice: str
    node: str
    boot: str
    kmsg: Path = Path("/dev/kmsg")
    root: Path = Path("/")
    position: Position = field(default_factory=Position)
    # Only lines with one of these are read at all; nothing given means every line.
    needles: tuple[bytes, ...] = kernel_log.NEEDLES


def follow(wanted: KernelLogSettings, *, time: clock.Clock) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every record behind the position that may matter, for ever; CollectError if the log cannot be read."""
    node, boot, needles = wanted.node, wanted.boot, wanted.needles
    if wanted.choice == JOURNALD:
        position = wanted.position.of(journal_follow.SOURCE)
        found = _find_journal(wanted.root)
        directory = None if wanted.root == Path("/") else found
        journal = journal_follow.JournalSource(node, boot, position, directory, needles)
        return journal_follow.follow_journal(journal, time=time)
    if wanted.choice == KMSG:
        position = wanted.position.of(kernel_follow.SOURCE)
        kmsg = kernel_follow.KmsgSource(
            wanted.kmsg, node, boot, after=position.sequence, after_us=position.since_boot_us, needles=needles
        )
        return kernel_follow.follow_kmsg(kmsg, time=time)
    position = wanted.position.of(file_follow.SOURCE)
    file = file_follow.FileSource(Path(wanted.choice), node, boot, position, needles)
    return file_follow.follow_file(file, time=time)


def position_of(record: kernel_follow.KernelRecord) -> Position:
    """Where the log is to be gone on with after this record."""
    read = kernel_log.read_record(record.record)
    return Position(record.source, record.seq, -1 if read is None else read.since_boot_us, record.mark)


def _find_journal(root: Path) -> Path:
    """Where journald writes; for a journal that is not kept journalctl would wait for ever, and without a word."""
    for name in JOURNALS:
        if any((root / name).glob("*/*.journal")):
            return root / name
    raise CollectError(
        "journald keeps no journal here",
        where=f"{root / JOURNALS[0]}, {root / JOURNALS[1]}",
        remedy="Start systemd-journald and let the agent's user read its files, or use --kernel-log kmsg",
    )
