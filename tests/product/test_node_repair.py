"""A real agent with fake GPUs resets one for a driver: the order goes over HTTP, and only where the agent allows it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_nvml.driver import FakeNvml
from tests.support.node_orders import GPU, HUB_KEY, KEY, RESET
from tests.support.waiting import PROGRAM_SECONDS, until
from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.errors import ActionRefused
from watchkeeper.kit import clock
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers.node import NodeAgentDriver
from watchkeeper.remediate.orders import OrderQueue
from watchkeeper.store.journal.journal import Journal

PATIENCE_SECONDS = 90.0


@contextlib.contextmanager
def an_agent(root: Path, url: str, *options: str) -> Iterator[None]:
    """The agent as an operator starts it, on a machine whose nvidia-smi writes down how it was called."""
    smi = root / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$@" >> {root}/calls\necho was reset\n')
    smi.chmod(0o700)
    (root / "proc/1").mkdir(parents=True)
    os.mkfifo(root / "kmsg")
    (root / "n1.key").write_text(KEY.decode())
    (root / "n1.key").chmod(0o600)
    where = ["--spool", str(root / "spool"), "--kmsg", str(root / "kmsg"), "--host-root", str(root)]
    who = ["--hub", url, "--node", "n1", "--order-key", str(root / "n1.key"), "--tool", f"nvidia-smi={smi}"]
    line = [sys.executable, "-m", "watchkeeper.cli.main", "agent", "--listen", "none", *who, *where, *options]
    environment = FakeNvml(root, root / "control").environment
    environment["LD_LIBRARY_PATH"] = os.environ["FAKE_NVML"]
    with (root / "agent.log").open("wb") as log:
        started = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:
        started.kill()
        started.wait()


def performed(driver: NodeAgentDriver) -> ActionOutcome:
    def complete() -> ActionOutcome | None:
        return done if (done := driver.perform(RESET)).is_complete else None

    return until(complete, timeout_seconds=PATIENCE_SECONDS, interval_seconds=PROGRAM_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_gpu_is_reset_where_the_agent_allows_it_while_its_own_reader_rests(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    monkeypatch.setenv("FAKE_NVML", str(library.parent))
    time_now = clock.ScaledClock()
    with contextlib.closing(Journal(tmp_path / "journal.db")) as journal:
        outbox = OrderQueue(journal, HUB_KEY, now=time_now.now())
        driver = NodeAgentDriver(lambda: outbox, time_now)
        allowed = ["--allow-order", "reset_gpu"] if is_allowed else []
        with serving(SmallHub(orders=outbox, clock=time_now)) as site, an_agent(tmp_path, site.url, *allowed):
            if not is_allowed:
                with pytest.raises(
                    ActionRefused, match="reset_gpu is not allowed on this node; allowed: describe_gpus"
                ):
                    performed(driver)
                assert not (tmp_path / "calls").exists()
                return
            assert performed(driver).text == f"n1: {GPU} was reset and answers"
            assert (tmp_path / "calls").read_text() == f"--gpu-reset -i {GPU}\n"
            assert performed(driver).text == f"n1: {GPU} was reset and answers", "and is not reset again"
        assert (tmp_path / "calls").read_text().count("\n") == 1
