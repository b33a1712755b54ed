"""The driver of the nodes: actions become orders, receipts become answers, and nothing is ordered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.node_orders import GPU, HUB_KEY, KEY, NOON, RESET
from tests.support.waiting import until_async
from watchkeeper.agent import profiling
from watchkeeper.agent.node_facts import Roots
from watchkeeper.agent.orders import order_context, order_ledger
from watchkeeper.agent.orders import orders as agents
from watchkeeper.config import settings as config
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit import wire
from watchkeeper.kit.own_metrics import Metric
from watchkeeper.model import orders
from watchkeeper.model.actions import ActionId, ActionKind, Result
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.driver import ActionOutcome, NodeObservation
from watchkeeper.remediate.drivers import cluster_driver, node
from watchkeeper.remediate.orders import REQUESTED_FOR, OrderQueue
from watchkeeper.store.journal.journal import Journal

REBOOT = replace(RESET, id=ActionId("3-reboot"), kind=ActionKind.REBOOT, place=Place("main", node="n1"))


class World:
    """A hub's outbox and the driver over it."""

    def __init__(self, journal: Journal) -> None:
        self.clock = ManualClock(NOON)
        self.outbox = OrderQueue(journal, HUB_KEY, now=NOON)
        self.driver = node.NodeAgentDriver(lambda: self.outbox, self.clock)

    def fetched(self) -> list[orders.Order]:
        envelopes = self.outbox.pending_orders("main", "n1", now=self.clock.now())
        return [wire.loads(orders.Order, envelope.text) for envelope in envelopes]

    def answer(self, result: Result, text: str = "so it is", key: bytes = KEY) -> None:
        (order,) = self.fetched()
        receipt = orders.Receipt(order.id, self.clock.now(), result, text)
        self.outbox.accept_receipt(order.id, orders.seal(receipt, key), now=self.clock.now())

    def pass_time(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "journal.db")) as opened:
        yield opened


@pytest.fixture
def world(journal: Journal) -> World:
    return World(journal)


def test_an_action_is_one_order_however_often_it_is_performed(world: World, journal: Journal) -> None:
    first = world.driver.perform(RESET)
    assert (first.is_complete, first.waits_for) == (
        False,
        ("the agent of n1 has not fetched the order reset_gpu of 12:00:00Z",),
    )
    (order,) = world.fetched()
    assert (order.id, order.kind, order.arguments) == ("INC-7:3-reset_gpu", "reset_gpu", {"gpu": GPU})
    assert "is working on the order reset_gpu, fetched 12:00:00Z" in world.driver.perform(RESET).waits_for[0]
    again = World(journal)
    again.driver.perform(RESET)
    assert again.fetched() == [order]
    again.answer(Result.DONE, "it was reset")
    assert again.driver.perform(RESET) == ActionOutcome("n1: it was reset")
    assert len(journal.latest_orders()) == 1


def test_what_the_agent_refuses_is_not_asked_for_again(world: World, journal: Journal) -> None:
    world.driver.perform(RESET)
    world.answer(Result.REFUSED, "held by pid 4711 train.py of ada", key=b"x" * 32)
    for _ in range(2):
        with pytest.raises(ActionRefused, match=r"n1: held by pid 4711 train.py of ada .not signed by the node"):
            world.driver.perform(RESET)
    assert len(journal.latest_orders()) == 1


def test_what_failed_is_ordered_once_more_and_then_given_up(world: World) -> None:
    world.driver.perform(RESET)
    world.answer(Result.FAILED, "nvidia-smi exited with status 255")
    with pytest.raises(ActionFailed, match=r"n1: nvidia-smi exited with status 255. The order is issued again"):
        world.driver.perform(RESET)
    assert not world.driver.perform(RESET).is_complete
    assert [order.id for order in world.fetched()] == ["INC-7:3-reset_gpu~2"]
    world.answer(Result.FAILED, "and again")
    with pytest.raises(ActionRefused, match="failed 2 times, the limit is 2: and again"):
        world.driver.perform(RESET)


def test_a_reboot_that_failed_is_not_ordered_again(world: World) -> None:
    world.driver.perform(REBOOT)
    world.answer(Result.FAILED, "the machine did not restart")
    with pytest.raises(ActionRefused, match="reboot failed 1 times, the limit is 1"):
        world.driver.perform(REBOOT)


def test_an_order_that_nobody_wants_any_more_is_handed_out_to_nobody(world: World) -> None:
    world.driver.perform(RESET)
    world.pass_time(REQUESTED_FOR.total_seconds() + 1)
    assert world.fetched() == [], "its repair was stopped: a reset now would hit the workload that has the GPU by then"
    notified: list[object] = []
    world.outbox.subscribe(notified.append)
    world.driver.perform(RESET)
    assert notified == [("main", "n1")]
    assert len(world.fetched()) == 1


def test_a_hub_that_restarts_hands_out_only_what_is_still_wanted(world: World, journal: Journal) -> None:
    world.driver.perform(RESET)
    again = World(journal)
    assert again.fetched() == []
    again.driver.perform(RESET)
    assert len(again.fetched()) == 1


def test_an_order_that_was_never_answered_is_said(world: World) -> None:
    world.driver.perform(RESET)
    world.pass_time(3600)
    with pytest.raises(
        ActionRefused, match=r"of 12:00:00Z expired without a receipt. It is unknown whether it was carried out"
    ):
        world.driver.perform(RESET)


def test_what_no_agent_does_is_refused(world: World) -> None:
    with pytest.raises(ActionRefused, match="the node's agent cannot perform cordon"):
        world.driver.perform(replace(RESET, kind=ActionKind.CORDON))
    with pytest.raises(ActionRefused, match="reset_gpu needs a GPU, and the GPU is unknown"):
        world.driver.describe(replace(RESET, place=Place("main", node="n1")))
    without = node.NodeAgentDriver(lambda: None, world.clock)
    with pytest.raises(ActionRefused, match="needs work orders"):
        without.perform(RESET)
    assert world.driver.describe(RESET) == (
        f"work order reset_gpu gpu={GPU} for the agent of n1 (on n1: nvidia-smi --gpu-reset -i {GPU})"
    )


class Cluster(cluster_driver.DryRunDriver):
    """A scheduler that reports a fixed observation."""

    def __init__(self, observed: NodeObservation) -> None:
        self.observed = observed

    def observe(self, place: Place) -> NodeObservation:
        return replace(self.observed, place=place)


@pytest.mark.parametrize(
    ("observed", "arguments"),
    [
        (NodeObservation(REBOOT.place, exists=True, is_schedulable=False), {"drained": "yes"}),
        (NodeObservation(REBOOT.place, exists=True, is_schedulable=False, workloads=("ml/train",)), {}),
        (NodeObservation(REBOOT.place, exists=True, is_schedulable=True), {}),
        (NodeObservation(REBOOT.place, exists=True), {}),
    ],
)
def test_a_reboot_order_says_that_the_node_is_drained_if_the_cluster_reports_it(
    world: World, observed: NodeObservation, arguments: dict[str, str]
) -> None:
    both = node.CompositeDriver(Cluster(observed), world.driver)
    both.perform(REBOOT)
    assert world.fetched()[0].arguments == arguments
    with pytest.raises(ActionRefused, match="only describes"):
        both.perform(replace(RESET, kind=ActionKind.CORDON))


def test_only_a_real_cluster_with_a_key_has_agents(world: World) -> None:
    cluster = cluster_driver.DryRunDriver()

    def chosen(driver: config.DriverName, key: str | None) -> object:
        settings = config.Settings(
            hub=config.HubSettings(order_key_file=key), remediate=config.RemediateSettings(driver=driver)
        )
        return node.add_node_agents(cluster, settings, lambda: world.outbox, time=world.clock)

    assert chosen(config.DriverName.SLURM, None) is cluster
    assert chosen(config.DriverName.DRY_RUN, "key") is cluster
    assert isinstance(chosen(config.DriverName.SLURM, "key"), node.CompositeDriver)


class Rebooting:
    """An agent's desk on a machine whose systemctl only writes down that it was called."""

    def __init__(self, root: Path, world: World) -> None:
        self.root, self.world = root, world
        self.boot, systemctl = root / "proc/sys/kernel/random/boot_id", root / "systemctl"
        self.boot.parent.mkdir(parents=True)
        systemctl.write_text(f"#!/bin/sh\necho $1 > {root}/called\n")
        systemctl.chmod(0o755)
        tools = order_context.NodeTools(systemctl=str(systemctl))
        self.bench = order_context.OrderContext(
            profiling.PauseFile(root), tools=tools, roots=Roots(root / "proc", root)
        )

    def worker(self) -> agents.OrderWorker:
        allowed = agents.AgentIdentity("main", "n1", KEY, frozenset({"reboot"}))
        ledger = order_ledger.OrderLedger(self.root / "orders", now=NOON)
        return agents.OrderWorker(
            allowed, ledger, self.bench, time=self.world.clock, counter=Metric("orders", "counter", "")
        )

    async def work_until_the_machine_goes_down(self, envelope: orders.Envelope) -> None:
        work = asyncio.create_task(self.worker().handle(envelope))
        await until_async((self.root / "called").exists)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def test_a_reboot_is_answered_by_the_agent_that_starts_after_it(world: World, tmp_path: Path) -> None:
    machine = Rebooting(tmp_path, world)
    machine.boot.write_text("aaaaaaaa-1\n")
    world.driver.perform(replace(REBOOT, arguments={"drained": "yes"}))
    (envelope,) = world.outbox.pending_orders("main", "n1", now=NOON)
    asyncio.run(machine.work_until_the_machine_goes_down(envelope))
    machine.boot.write_text("bbbbbbbb-2\n")
    after = machine.worker()
    after.resume()
    ((id, receipt),) = after.ledger.read_receipts().items()
    world.outbox.accept_receipt(id, receipt, now=world.clock.now())
    assert world.driver.perform(REBOOT).text == "n1: the node rebooted: its boot id was aaaaaaaa and is bbbbbbbb"


@pytest.mark.parametrize(
    ("line", "result", "words"),
    [
        (order_ledger.LedgerEntry("n", NOON, kind="reboot", boot="a"), Result.FAILED, "but the node did not reboot"),
        (order_ledger.LedgerEntry("n", NOON, kind="reset_gpu", boot="b"), Result.FAILED, "it is unknown whether"),
        (order_ledger.LedgerEntry("n", NOON, kind="reboot"), Result.FAILED, "it is unknown whether"),
        (order_ledger.LedgerEntry("n", NOON), Result.FAILED, "it is unknown whether"),
        (
            order_ledger.LedgerEntry("n", NOON, kind="restart_service", service="watchkeeper-agent"),
            Result.DONE,
            "this agent was restarted",
        ),
    ],
)
def test_only_a_restart_that_was_the_work_itself_proves_it(
    line: order_ledger.LedgerEntry, result: Result, words: str
) -> None:
    done = agents.find_outcome_after_restart(line, "a")
    assert done.result is result
    assert words in done.text


def test_a_machine_without_a_boot_id_is_not_said_to_have_stayed_up() -> None:
    done = agents.find_outcome_after_restart(order_ledger.LedgerEntry("n", NOON, kind="reboot", boot="a"), "")
    assert done.result is Result.FAILED
    assert "it is unknown whether" in done.text


def test_the_power_of_a_node_of_a_hot_rack_is_one_order_for_all_its_gpus(world: World) -> None:
    place = Place("main", node="n1")
    arguments = {"percent": "70"}
    cap = replace(RESET, id=ActionId("1-lower_power-1"), kind=ActionKind.LOWER_POWER, place=place, arguments=arguments)
    with pytest.raises(ActionRefused, match="its agent last asked for orders never, the limit is 120 s"):
        world.driver.describe(cap)
    world.fetched()
    assert "work order lower_power gpu=all percent=70 for the agent of n1" in world.driver.describe(cap)
    world.driver.perform(cap)
    (order,) = world.fetched()
    assert (order.kind, order.arguments) == ("lower_power", {"gpu": "all", "percent": "70"})
    world.pass_time(121)
    with pytest.raises(ActionRefused, match="last asked for orders 121 s ago, the limit is 120 s"):
        world.driver.describe(cap)
