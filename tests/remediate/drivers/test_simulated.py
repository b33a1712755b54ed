"""The driver of the simulator against the real simulator, and against things that are none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests import servers
from watchkeeper.clusters import simulated_cluster
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.model import fleet, incidents
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.remediate.drivers.simulated import SimulatedDriver
from watchkeeper.sim import server, simulation

SETTINGS = simulation.SimSettings(gpus=16, port=0)


@pytest.fixture(scope="module")
def simulator() -> Iterator[tuple[SimulatedDriver, fleet.Place]]:
    """A small fleet on a free port, and its first node."""
    listener = server.open_listener(SETTINGS)
    listener.listen()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(SETTINGS, stop, listener=listener),))
    thread.start()
    node = simulation.Simulation(SETTINGS).layout.nodes[0].name
    yield SimulatedDriver(f"http://127.0.0.1:{listener.getsockname()[1]}"), fleet.Place("sim", node=node)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def action(kind: ActionKind, place: fleet.Place, *, step: int = 1, incident: str = "INC-1") -> Action:
    return Action(ActionId(f"{step}-{kind}"), kind, place, incidents.IncidentId(incident), "why")


def test_a_cordon_is_written_on_the_node_once_and_taken_off_by_its_own_incident(
    simulator: tuple[SimulatedDriver, fleet.Place],
) -> None:
    driver, node = simulator
    cordon = action(ActionKind.CORDON, node)
    assert driver.observe(node).is_schedulable is True
    assert driver.describe(cordon) == f"POST /cluster/nodes/{node.node}/cordon by watchkeeper:INC-1/1-cordon"
    driver.perform(cordon)
    driver.perform(cordon)
    observed = driver.observe(node)
    assert (observed.is_schedulable, observed.cordoned_by) == (False, cordon.mark)
    with pytest.raises(ActionRefused, match="the cordon belongs to watchkeeper:INC-1/1-cordon, not to INC-2"):
        driver.perform(action(ActionKind.UNCORDON, node, step=5, incident="INC-2"))
    driver.perform(action(ActionKind.UNCORDON, node, step=5))
    assert driver.observe(node).is_schedulable is True


def test_the_view_of_the_cluster_shows_what_the_driver_did(simulator: tuple[SimulatedDriver, fleet.Place]) -> None:
    driver, place = simulator
    view = simulated_cluster.SimulatedCluster(driver.url, cluster="sim", time=ScaledClock())

    def read() -> tuple[str, bool, str]:
        asyncio.run(view.refresh())
        node = next(node for node in view.view().nodes if node.name == place.node)
        return node.state, node.is_schedulable, node.unschedulable_by

    assert read() == ("Ready", True, "")
    driver.perform(action(ActionKind.CORDON, place))
    assert read() == ("Ready,SchedulingDisabled", False, "watchkeeper:INC-1/1-cordon")
    driver.perform(action(ActionKind.UNCORDON, place, step=5))
    assert read() == ("Ready", True, "")
    assert (view.view().at_ms is not None, view.problems()) == (True, [])


def test_a_simulator_that_is_gone_is_a_problem_of_the_view() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}"
    view = simulated_cluster.SimulatedCluster(url, cluster="sim", time=ScaledClock())
    asyncio.run(view.refresh())
    assert view.view().at_ms is None
    assert "refused" in view.problems()[0]


def test_a_node_that_the_simulator_does_not_have_does_not_exist(simulator: tuple[SimulatedDriver, fleet.Place]) -> None:
    driver, _ = simulator
    stranger = fleet.Place("sim", node="no such node")
    assert driver.observe(stranger).exists is False
    with pytest.raises(ActionFailed, match="it answered 404"):
        driver.perform(action(ActionKind.CORDON, stranger))


def test_a_reset_of_an_unknown_gpu_fails_with_the_simulators_message(
    simulator: tuple[SimulatedDriver, fleet.Place],
) -> None:
    driver, node = simulator
    with pytest.raises(ActionFailed, match=r"gpus/GPU-none/reset failed: it answered 404"):
        driver.perform(action(ActionKind.RESET_GPU, fleet.Place("sim", node=node.node, gpu="GPU-none")))


def test_a_manual_step_is_described_and_refused(simulator: tuple[SimulatedDriver, fleet.Place]) -> None:
    driver, node = simulator
    look = action(ActionKind.INSPECT, node)
    assert driver.describe(look) == f"Manual: inspect {node.node}"
    with pytest.raises(ActionRefused, match="no call for inspect"):
        driver.perform(look)


def test_an_unreachable_simulator_is_a_failure_with_the_reason() -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    with pytest.raises(ActionFailed, match=r"GET /cluster/nodes/n1 failed: connection refused"):
        SimulatedDriver(url).observe(fleet.Place("sim", node="n1"))


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_without_json_is_a_failure_with_the_reason() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        with pytest.raises(ActionFailed, match="the answer is not a JSON object"):
            SimulatedDriver(f"http://127.0.0.1:{other.server_port}").observe(fleet.Place("sim", node="n1"))
        thread.join()


def test_a_holder_is_warned_once_and_then_its_gpu_is_free(simulator: tuple[SimulatedDriver, fleet.Place]) -> None:
    driver, node = simulator
    gpu = fleet.Place("sim", node=node.node, gpu=simulation.Simulation(SETTINGS).layout.nodes[0].gpus[0].uuid)
    before = driver.observe(node).workloads
    warn, take = action(ActionKind.WARN_OWNER, gpu), action(ActionKind.RECLAIM, gpu, step=2)
    assert f"notified the owner of {before[0]}" in driver.perform(warn).text
    assert driver.perform(warn).text.endswith("was already notified")
    assert driver.perform(take).text.endswith(f"scaled {before[0]} down")
    assert before[0] not in driver.observe(node).workloads
    assert driver.perform(take).text.endswith(f"{gpu.gpu} is not in use")
