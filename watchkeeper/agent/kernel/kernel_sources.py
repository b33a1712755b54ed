"""Chooses the source of kernel records: /dev/kmsg, systemd's journal, or a file that syslog writes.

`--kernel-log` of the agent names the source; all three yield the same records. `kmsg` is the fastest, and the only one
in which a program cannot fake a kernel line; the others are for agents that may not read it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.agent.kernel import file_follow, journal_follow, kernel_follow
from watchkeeper.agent.kernel.kernel_position import KernelLogPosition
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.readers.logs import kernel_log

KMSG = "kmsg"
JOURNALD = "journald"
# Where journald writes its files, the persistent ones first.
JOURNAL_DIRECTORIES = ("var/log/journal", "run/log/journal")


@dataclass(frozen=True, slots=True)
class KernelLogSettings:
    """One node's kernel log: `source` is `kmsg`, `journald` or a file's path, `root` is the node's root directory."""

    source: str
    node: str
    boot: str
    kmsg: Path = Path("/dev/kmsg")
    root: Path = Path("/")
    position: KernelLogPosition = field(default_factory=KernelLogPosition)
    # Only lines that contain one of these are parsed; empty: every line.
    needles: tuple[bytes, ...] = kernel_log.NEEDLES


def follow(settings: KernelLogSettings, *, time: clock.Clock) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every record after the position that contains a needle; CollectError if the log cannot be read."""
    node, boot, needles = settings.node, settings.boot, settings.needles
    if settings.source == JOURNALD:
        position = settings.position.for_source(journal_follow.SOURCE)
        directory: Path | None = _find_journal(settings.root)
        directory = None if settings.root == Path("/") else directory
        journal = journal_follow.JournalSource(node, boot, position, directory, needles)
        return journal_follow.follow_journal(journal, time=time)
    if settings.source == KMSG:
        position = settings.position.for_source(kernel_follow.SOURCE)
        kmsg = settings.kmsg, node, boot, position.sequence, position.since_boot_us, needles
        return kernel_follow.follow_kmsg(kernel_follow.KmsgSource(*kmsg), time=time)
    position = settings.position.for_source(file_follow.SOURCE)
    file = file_follow.FileSource(Path(settings.source), node, boot, position, needles)
    return file_follow.follow_file(file, time=time)


def build_position(record: kernel_follow.KernelRecord) -> KernelLogPosition:
    """The position after this record."""
    parsed = kernel_log.read_record(record.record)
    return KernelLogPosition(record.source, record.seq, -1 if parsed is None else parsed.since_boot_us, record.cursor)


def _find_journal(root: Path) -> Path:
    """The directory of the journal; without one, journalctl would wait forever and print no error."""
    for name in JOURNAL_DIRECTORIES:
        if any((root / name).glob("*/*.journal")):
            return root / name
    raise CollectError(
        "journald has no journal files here",
        where=f"{root / JOURNAL_DIRECTORIES[0]}, {root / JOURNAL_DIRECTORIES[1]}",
        remedy="Start systemd-journald and let the agent's user read its files, or use --kernel-log kmsg",
    )
