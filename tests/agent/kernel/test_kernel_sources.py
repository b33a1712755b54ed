"""Kernel lines from the journal and from a file: the same events as from /dev/kmsg, each once, across restarts."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.loopback import reply, serve
from tests.support.manual_clock import ManualClock, settle
from tests.support.running_agent import UUID, events, machine, settings
from tests.support.waiting import until_async
from watchkeeper.agent import agent
from watchkeeper.agent.kernel import kernel_sources
from watchkeeper.agent.kernel.file_follow import OpenLogFile
from watchkeeper.agent.kernel.kernel_follow import KernelRecord
from watchkeeper.agent.kernel.kernel_position import KernelLogPosition, PositionFile, build_sequence
from watchkeeper.errors import CollectError
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.kit.own_metrics import Registry
from watchkeeper.readers.logs import kernel_lines

XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=7, name=python, GPU has fallen off the bus."
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def entry(number: int, text: str = XID, **changed: object) -> str:
    """One line of `journalctl -o json`, with the fields that journald gives a kernel line."""
    plain = {"__CURSOR": f"s=a;i={number}", "__REALTIME_TIMESTAMP": "1", "__MONOTONIC_TIMESTAMP": "9000000"}
    plain |= {"_SOURCE_MONOTONIC_TIMESTAMP": str(number), "_TRANSPORT": "kernel", "PRIORITY": "4", "MESSAGE": text}
    plain |= {"SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0"}
    return json.dumps(plain | changed) + "\n"


def install_journalctl(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A journalctl that notes what it was asked and then does what the test wants."""
    (root / "var/log/journal/m").mkdir(parents=True)
    (root / "var/log/journal/m/system.journal").touch()
    program = root / "bin/journalctl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\ncd "{root}"\necho "$@" >> asked\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@asynccontextmanager
async def following(
    settings: kernel_sources.KernelLogSettings, clock: ManualClock | ScaledClock
) -> AsyncIterator[list[KernelRecord]]:
    records: list[KernelRecord] = []

    async def collect() -> None:
        async for record in kernel_sources.follow(settings, time=clock):
            records.append(record)  # noqa: PERF401  an endless stream never extends

    task = asyncio.create_task(collect())
    try:
        yield records
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def journal(root: Path, position: KernelLogPosition | None = None) -> kernel_sources.KernelLogSettings:
    return kernel_sources.KernelLogSettings("journald", "n1", "b", root=root, position=position or KernelLogPosition())


def test_the_agent_pushes_events_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").write_text(entry(5, "usb 1-1: new device") + entry(6))
    install_journalctl(tmp_path, monkeypatch, "exec tail -n +1 -f journal")

    async def story() -> None:
        stop = asyncio.Event()
        async with serve(lambda _: reply('{"ok":true}')) as hub:
            chosen = replace(settings(machine(tmp_path), hub.origin), kernel_log="journald")
            task = asyncio.create_task(agent.run(chosen, ScaledClock(), stop, registry=Registry()))
            await until_async(lambda: bool(events(hub.heard)))
            stop.set()
            await task
        (event,) = events(hub.heard)
        assert (event.id, event.code) == (f"sim/n1/b00t/journald/{build_sequence(6, XID)}", 79)
        assert event.place.gpu == UUID
        kept = PositionFile(tmp_path / "spool/kmsg.cursor", "b00t").load()
        assert (kept.source, kept.cursor, kept.since_boot_us) == ("journald", "s=a;i=6", 6)

    asyncio.run(story())
    assert (
        f"-k -f -o json --no-tail --no-pager --directory={tmp_path}/var/log/journal" in (tmp_path / "asked").read_text()
    )


def test_a_journalctl_that_exits_is_restarted_after_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start, line in enumerate((entry(6), entry(7)), 1):
        (tmp_path / f"journal.{start}").write_text(line)
    install_journalctl(tmp_path, monkeypatch, "cat journal.$(wc -l < asked)")

    async def story() -> None:
        async with following(journal(tmp_path), ScaledClock(speed=100)) as records:
            await until_async(lambda: len(records) == 2)

    asyncio.run(story())
    first, *others = (tmp_path / "asked").read_text().splitlines()
    assert "--after-cursor" not in first
    assert others[0].endswith("--after-cursor=s=a;i=6")


def test_an_unknown_journal_cursor_restarts_at_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").write_text(entry(8))
    refuse = 'case "$*" in *after-cursor*) echo "Failed to seek to cursor: Invalid argument" >&2; exit 1;; esac'
    install_journalctl(tmp_path, monkeypatch, f"{refuse}\nexec tail -n +1 -f journal")

    async def story() -> None:
        position = KernelLogPosition("journald", 1, 1, "s=gone;i=1")
        async with following(journal(tmp_path, position), ScaledClock(speed=100)) as records:
            await until_async(lambda: len(records) == 1)
            assert records[0].cursor == "s=a;i=8"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", "cannot be read: .No jou"),
        ("echo 'Data from the specified boot (+0) is not available: x' >&2; exit 1", "cannot be read: .Data from"),
    ],
)
def test_an_unreadable_journal_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    install_journalctl(tmp_path, monkeypatch, script)
    with pytest.raises(CollectError, match=problem):
        asyncio.run(_first(journal(tmp_path)))


def test_a_missing_journalctl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_journalctl(tmp_path, monkeypatch, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CollectError, match=r"journalctl cannot be started: No such file.*use --kernel-log kmsg"):
        asyncio.run(_first(journal(tmp_path)))


def test_a_node_without_journal_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="journald has no journal files here"):
        asyncio.run(_first(journal(tmp_path)))


async def _first(settings: kernel_sources.KernelLogSettings) -> KernelRecord:
    return await anext(kernel_sources.follow(settings, time=ScaledClock()))


def test_a_program_that_writes_into_the_kernel_log_is_not_the_kernel() -> None:
    real = kernel_lines.read_journal_entry(entry(6).encode())
    forged = kernel_lines.read_journal_entry(entry(6, SYSLOG_FACILITY="1", SYSLOG_IDENTIFIER="python").encode())
    listed = kernel_lines.read_journal_entry(entry(6, MESSAGE=list(XID.encode() + b"\xff")).encode())
    assert real is not None
    assert forged is not None
    assert listed is not None
    assert (real.facility, forged.facility, listed.text) == (0, 1, XID + "\ufffd")
    assert kernel_lines.read_journal_entry(b'{"MESSAGE":null}') is None


@pytest.mark.parametrize(
    ("line", "at", "since_boot_us"),
    [
        (f"Nov 15 11:59:00 n1 kernel: [82710.917400] {XID}", None, 82_710_917_400),
        (f"2026-11-15T11:59:00.5+00:00 n1 kernel: {XID}", NOW - timedelta(seconds=59.5), None),
        (f"2026-11-15T12:59:00+01:00 n1 kernel:[    1.000002] {XID}", NOW - timedelta(minutes=1), 1_000_002),
    ],
)
def test_both_forms_of_a_syslog_line_are_read(line: str, at: datetime | None, since_boot_us: int | None) -> None:
    entry = kernel_lines.read_syslog_line(line, NOW)
    assert entry is not None
    assert (entry.text, entry.since_boot_us) == (XID, since_boot_us)
    assert at is None or entry.at == at


def test_a_time_since_boot_that_no_kernel_writes_is_text() -> None:
    entry = kernel_lines.read_syslog_line(f"Nov 15 11:59:00 n1 kernel: [{'9' * 5000}.917400] {XID}", NOW)
    assert entry is not None
    assert entry.since_boot_us is None
    assert entry.text.endswith(XID)


def test_a_line_of_december_read_in_january_is_last_years() -> None:
    entry = kernel_lines.read_syslog_line("Dec 31 23:00:00 n1 kernel: x", datetime(2026, 1, 2, tzinfo=UTC))
    assert entry is not None
    assert entry.at.year == 2025
    assert kernel_lines.read_syslog_line("Nov 15 11:59:00 n1 sshd[7]: kernel: x", NOW) is None


def log_line(clock: ManualClock, number: int, text: str = XID) -> str:
    return f"{clock.now().isoformat()} n1 kernel: [{number:5d}.000000] {text}\n"


def test_a_file_is_followed_through_rotation_and_truncation(tmp_path: Path) -> None:
    async def story() -> None:
        path, clock = tmp_path / "kern.log", ManualClock(NOW)
        path.write_text(log_line(clock, 1))
        async with following(kernel_sources.KernelLogSettings(str(path), "n1", "b"), clock) as records:
            await settle()
            path.rename(tmp_path / "kern.log.1")
            with (tmp_path / "kern.log.1").open("a") as late:
                late.write(log_line(clock, 2))
            path.write_text(log_line(clock, 3))
            await clock.advance(3)
            path.write_text(log_line(clock, 4)[:-20])
            await clock.advance(1)
            with path.open("a") as rest:
                rest.write(log_line(clock, 4)[-20:])
            await clock.advance(1)
            assert [record.record.split(",")[2] for record in records] == [f"{n}000000" for n in (1, 2, 3, 4)]

    asyncio.run(story())


def test_a_file_that_was_truncated_in_the_middle_of_a_line_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("half a li")
    file = OpenLogFile(path)
    assert list(file.read_lines(()) or ()) == []
    path.write_text("")
    assert file.was_truncated()
    path.write_text("whole\n")
    assert list(file.read_lines(()) or ()) == [(b"whole", 6)]
    file.close()


def test_a_new_log_file_that_disappears_is_an_error_and_nothing_is_closed_twice(tmp_path: Path) -> None:
    async def story() -> None:
        path, clock = tmp_path / "kern.log", ManualClock(NOW)
        path.write_text(log_line(clock, 1))
        lines = kernel_sources.follow(kernel_sources.KernelLogSettings(str(path), "n1", "b"), time=clock)
        await anext(lines)
        waiting = asyncio.create_task(anext(lines))
        await settle()
        path.rename(tmp_path / "kern.log.1")
        # There when it is noticed, gone when it is opened.
        path.write_text("")
        await clock.advance(0.5)
        path.unlink()
        await clock.advance(1)
        with pytest.raises(CollectError, match="cannot be opened"):
            await waiting

    asyncio.run(story())


def test_a_restarted_agent_continues_in_a_rotated_file(tmp_path: Path) -> None:
    async def story() -> None:
        path, clock = tmp_path / "kern.log", ManualClock(NOW)
        settings = kernel_sources.KernelLogSettings(str(path), "n1", "b")
        path.write_text(log_line(clock, 1))
        async with following(settings, clock) as records:
            await settle()
            position = kernel_sources.build_position(records[0])
        with path.open("a") as file:
            file.write(log_line(clock, 2))
        path.rename(tmp_path / "kern.log-20261115")
        path.write_text(log_line(clock, 3))
        async with following(replace(settings, position=position), clock) as records:
            await clock.advance(2)
            assert [record.record.split(",")[2] for record in records] == ["2000000", "3000000"]

    asyncio.run(story())


def test_lines_of_an_earlier_boot_are_skipped(tmp_path: Path) -> None:
    async def story() -> None:
        path, clock = tmp_path / "kern.log", ScaledClock()
        old = datetime.now(UTC) - timedelta(seconds=time.monotonic() + 3600)
        path.write_text(f"{old.isoformat()} n1 kernel: {XID}\n{datetime.now(UTC).isoformat()} n1 kernel: {XID} new\n")
        async with following(kernel_sources.KernelLogSettings(str(path), "n1", "b"), clock) as records:
            await until_async(lambda: bool(records))
            assert [record.record.partition(";")[2] for record in records] == [f"{XID} new"]

    asyncio.run(story())


def test_another_source_continues_at_the_position_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal").write_text(entry(6) + entry(7))
    install_journalctl(tmp_path, monkeypatch, "exec tail -n +1 -f journal")

    async def story() -> None:
        async with following(journal(tmp_path, KernelLogPosition("kmsg", 1042, 6)), ScaledClock()) as records:
            await until_async(lambda: bool(records))
            assert [record.cursor for record in records] == ["s=a;i=7"]
        (tmp_path / "kmsg").write_text("4,1042,6,-;known\n4,1043,7,-;new\n")
        back = kernel_sources.KernelLogSettings(
            "kmsg", "n1", "b", kmsg=tmp_path / "kmsg", position=KernelLogPosition("journald", 1, 6)
        )
        back = replace(back, needles=())
        async with following(back, ScaledClock()) as records:
            await until_async(lambda: bool(records))
            assert [record.seq for record in records] == [1043]

    asyncio.run(story())


def test_a_position_is_saved_without_waiting_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: int) -> None:
        raise OSError("a disk that hangs would be waited for")

    monkeypatch.setattr(os, "fsync", hang)
    PositionFile(tmp_path / "cursor", "b1").save(KernelLogPosition("kmsg", 7, 9, "m"))
    assert PositionFile(tmp_path / "cursor", "b1").load() == KernelLogPosition("kmsg", 7, 9, "m")


def test_a_position_of_another_boot_is_ignored(tmp_path: Path) -> None:
    kept = PositionFile(tmp_path / "cursor", "b1")
    kept.save(KernelLogPosition("file", 5, 6, "1:2"))
    assert kept.load() == KernelLogPosition("file", 5, 6, "1:2")
    assert PositionFile(tmp_path / "cursor", "b2").load() == KernelLogPosition()
    (tmp_path / "cursor").write_text('{"boot": "b1", "sequence": 9}')
    assert kept.load() == KernelLogPosition("kmsg", 9)


@given(st.lists(st.text("ab\n", max_size=12), max_size=12), st.integers(0, 40))
def test_a_file_gives_each_line_once_however_it_is_written_and_wherever_it_is_resumed(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], resumed_at: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "kern.log"
    path.touch()
    file, lines = OpenLogFile(path), list[tuple[bytes, int]]()
    with path.open("a") as writer:
        for piece in pieces:
            writer.write(piece)
            writer.flush()
            lines += file.read_lines(()) or ()
    file.close()
    whole = "".join(pieces).split("\n")[:-1]
    assert [line.decode() for line, _ in lines] == whole
    if lines:
        place = resumed_at % len(lines)
        again = OpenLogFile(path, lines[place][1])
        assert list(again.read_lines(()) or ()) == lines[place + 1 :]
        again.close()
