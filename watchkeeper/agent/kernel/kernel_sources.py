"""Chooses the source of kernel records: /dev/kmsg, systemd's journal, or a file that syslog writes.

`--kernel-log` of the agent names the source; all three yield the same records. `kmsg` is the fastest, and the only one
in which a program cannot fake a kernel line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from watchkeeper.agent.kernel import file_follow, journal_follow, kernel_follow
from watchkeeper.agent.kernel.kernel_position import KernelLogPosition, KernelLogSettings
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.readers.logs import kernel_log

KMSG = kernel_follow.SOURCE
JOURNALD = journal_follow.SOURCE
# Where journald writes its files, the persistent ones first.
JOURNAL_DIRECTORIES = ("var/log/journal", "run/log/journal")


def follow(settings: KernelLogSettings, *, time: clock.Clock) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every record after the position that contains a needle; CollectError if the log cannot be read."""
    source = settings.source if settings.source in (KMSG, JOURNALD) else file_follow.SOURCE
    settings = replace(settings, position=settings.position.for_source(source))
    if source == JOURNALD:
        directory = _find_journal(settings.root)
        # In the node's root directory, journalctl finds its journal itself.
        return journal_follow.follow_journal(settings, None if settings.root == Path("/") else directory, time=time)
    return (kernel_follow.follow_kmsg if source == KMSG else file_follow.follow_file)(settings, time=time)


def build_position(record: kernel_follow.KernelRecord) -> KernelLogPosition:
    parsed = kernel_log.read_record(record.record)
    return KernelLogPosition(record.source, record.seq, -1 if parsed is None else parsed.since_boot_us, record.cursor)


def _find_journal(root: Path) -> Path:
    """The directory of the journal; without one, journalctl would wait forever and print no error."""
    for name in JOURNAL_DIRECTORIES:
        if any((root / name).glob("*/*.journal")):
            return root / name
    where = ", ".join(str(root / name) for name in JOURNAL_DIRECTORIES)
    remedy = "Start systemd-journald and let the agent's user read its files, or use --kernel-log kmsg"
    raise CollectError("journald has no journal files here", where=where, remedy=remedy)
