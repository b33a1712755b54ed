"""Programs that an order runs: their output and their lifetime are limited."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.support.node_orders import NOON
from tests.support.waiting import until_async
from watchkeeper.agent.orders import order_context, order_work
from watchkeeper.agent.profiling import PauseFile
from watchkeeper.errors import CollectError


def test_a_scan_returns_its_report_whatever_the_verdict(tmp_path: Path, machine: MakeFake) -> None:
    fake = machine(2)
    (tmp_path / "kmsg").touch()
    where = ("--host-root", str(tmp_path), "--kmsg", str(tmp_path / "kmsg"), "--watch", "0")

    def scanned(*options: str) -> order_work.OrderOutcome:
        bench = order_work.OrderContext(PauseFile(tmp_path), (*where, *options), fake.environment)
        return asyncio.run(order_work.scan(bench, {}, NOON))

    bad = scanned("--expected-gpus", "3")
    assert (bad.text, json.loads(bad.output)["verdict"]) == ("this node is degraded or unhealthy", "unhealthy")
    with pytest.raises(CollectError, match="the scan exited with status 2"):
        scanned("--no-such-option")


def test_a_program_that_prints_too_much_is_killed_with_both_numbers() -> None:
    with pytest.raises(CollectError, match="bytes or more, the limit is 262144"):
        asyncio.run(order_context.run_program([sys.executable, "-c", "while True: print('x' * 9999)"], None))


def test_a_program_ends_with_the_order_that_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    async def story() -> None:
        work = asyncio.create_task(order_context.run_program([sys.executable, "-c", program], None))
        await until_async(lambda: note.exists() and note.read_text())
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(story())
    assert not Path("/proc", note.read_text()).exists()


def test_a_missing_program_is_an_error_with_its_name() -> None:
    with pytest.raises(CollectError, match="/nowhere/program: cannot be started: No such file"):
        asyncio.run(order_context.run_program(["/nowhere/program"], None))
