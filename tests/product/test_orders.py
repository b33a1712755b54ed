"""Hub and agent as programs: an order goes from one command line to another node's agent, whatever dies in between."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.product.hub_and_agent import Place, await_that
from tests.support.fake_nvml import driver
from tests.support.running_product import command


@pytest.mark.slow
def test_an_order_survives_the_death_of_the_hub_and_is_done_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.a_hub():
        given = await_that(lambda: place.hub.create_order("n1", "profiling_pause", {"seconds": "600"}))
    with place.an_agent(), place.a_hub():
        receipt = place.answered(given.order.id)
        assert receipt.result == "done"
        pause = json.loads((tmp_path / "spool" / "profiling_pause.json").read_text())
        resumed = command("agent", "profiling", "resume", "--node", "n1", "--hub", place.hub.url)
        assert (resumed.returncode, resumed.stdout) == (0, "n1: done: profiling resumed\n")
        scan = command("agent", "order", "n1", "scan", "--hub", place.hub.url)
        assert (scan.returncode, json.loads(scan.stdout)["verdict"]) == (0, "unknown")
        refused = command("agent", "order", "n1", "profiling_pause", "seconds=0", "--hub", place.hub.url)
        assert (refused.returncode, "it must be from 1 to 86400" in refused.stdout) == (1, True)
    assert pause["by"] == "an order"
    assert (tmp_path / "agent.log").read_text().count("order finished") == 4


@pytest.mark.slow
def test_work_that_died_with_its_agent_is_answered_by_the_next_one(
    tmp_path: Path, fake: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    log = tmp_path / "agent.log"
    # A driver that hangs: the scan is never over before its agent is killed.
    fake.tell(driver.EVERY, Init=driver.HANG)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setitem(os.environ, name, fake.environment[name])
    with place.a_hub():
        with place.an_agent() as first:
            id = await_that(lambda: place.hub.create_order("n1", "scan", {})).order.id
            await_that(lambda: "order started" in log.read_text())
            first.kill()
        fake.tell(driver.EVERY, Init=None)
        with place.an_agent():
            receipt = place.answered(id)
    assert (receipt.result, "it is unknown whether the work was done" in receipt.text) == ("failed", True)
