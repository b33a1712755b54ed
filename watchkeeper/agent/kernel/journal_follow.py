"""Follows the kernel's lines in systemd's journal, through `journalctl --follow`.

For nodes on which the agent may not read /dev/kmsg, or whose journal covers more time. journalctl itself handles
rotated files and a restarted journald; when it exits, it is restarted after the last line that was read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.agent.kernel import kernel_follow
from watchkeeper.agent.kernel.kernel_position import KernelLogSettings, build_sequence
from watchkeeper.agent.kernel.streaming_process import StreamingProcess
from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import backoff, clock, logs
from watchkeeper.readers.logs import kernel_lines

log = logging.getLogger(__name__)

SOURCE = "journald"
RETRY_BACKOFF = backoff.Backoff(1.0, 60.0)
# journalctl prints a message that is not text as a list of numbers, which no needle matches.
BINARY_MESSAGES = (b'"MESSAGE":[', b'"MESSAGE" : [')
# What journalctl prints on standard error when it can never show a kernel line.
PERMANENT_ERROR = re.compile(
    r"insufficient permissions|not seeing messages from (?:other users and )?the system"
    r"|No journal files were|specified boot .*not available",
    re.IGNORECASE,
)
INVALID_CURSOR = re.compile(r"[Ff]ailed to (?:seek to|parse|get) .*cursor|[Ii]nvalid cursor")


async def follow_journal(
    settings: KernelLogSettings, directory: Path | None, *, time: clock.Clock
) -> AsyncGenerator[kernel_follow.KernelRecord, None]:
    """Every kernel line of this boot after the position; CollectError if journalctl can never read the journal.

    `directory` None: journalctl's default.
    """
    cursor, failures = settings.position.cursor, 0
    needles = (*settings.needles, *BINARY_MESSAGES) if settings.needles else ()
    while True:
        child = _start_journalctl(directory, cursor)
        error_text, status = "", None
        try:
            async for line in child.lines(needles):
                entry = None if line is None else kernel_lines.read_journal_entry(line)
                if entry is None:
                    _raise_if_permanent(child.read_errors())
                    continue
                cursor, failures = entry.cursor, 0
                record = _build_record(entry, settings, now=time.now())
                if record is not None:
                    yield record
            error_text = child.read_errors()
        finally:
            status = child.close()
        _raise_if_permanent(error_text)
        if INVALID_CURSOR.search(error_text):
            # The journal was deleted: read the new one from its start; event ids stay the same.
            cursor = ""
        failures += 1
        pause = RETRY_BACKOFF.delay_seconds(failures)
        log_fields = logs.fields(status=status, stderr=quote(error_text), retry_seconds=pause)
        log.warning("journalctl exited, retrying", extra=log_fields)
        await time.sleep(pause)


def _start_journalctl(directory: Path | None, cursor: str) -> StreamingProcess:
    # `-k` selects this boot's kernel lines, `--no-tail` all of them, not the last ten.
    arguments = ["journalctl", "-k", "-f", "-o", "json", "--no-tail", "--no-pager"]
    arguments += [] if directory is None else [f"--directory={directory}"]
    arguments += [f"--after-cursor={cursor}"] if cursor else []
    try:
        return StreamingProcess(arguments)
    except OSError as error:
        problem = f"journalctl cannot be started: {error.strerror}"
        remedy = "Install systemd's journalctl, or use --kernel-log kmsg"
        raise CollectError(problem, where="--kernel-log journald", remedy=remedy) from error


def _raise_if_permanent(error_text: str) -> None:
    if PERMANENT_ERROR.search(error_text):
        problem = f"the journal cannot be read: {quote(error_text.splitlines()[0])}"
        remedy = "Run as root or as a member of the group systemd-journal, or use --kernel-log kmsg"
        raise CollectError(problem, where="--kernel-log journald", remedy=remedy)


def _build_record(
    entry: kernel_lines.JournaldEntry, settings: KernelLogSettings, *, now: datetime
) -> kernel_follow.KernelRecord | None:
    """The entry as a /dev/kmsg record; None if another source has read it before."""
    if entry.since_boot_us <= settings.position.since_boot_us and not settings.position.cursor:
        return None
    # Facility 1 is user space: an entry without a facility does not count as the kernel's.
    facility = 1 if entry.facility is None else entry.facility
    sequence = build_sequence(entry.since_boot_us, entry.text)
    record = f"{facility << 3 | entry.level},{sequence},{entry.since_boot_us},-;{entry.text}"
    at = now - timedelta(seconds=max(0.0, settings.monotonic() - entry.since_boot_us / 1e6))
    return kernel_follow.KernelRecord(settings.node, settings.boot, record, at, sequence, SOURCE, entry.cursor)
