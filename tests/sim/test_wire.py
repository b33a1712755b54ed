"""The endpoints, over a real socket on loopback."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Container
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from watchkeeper.agent.kernel.gpu_addresses import GpuAddresses, read_simulator_inventory
from watchkeeper.agent.kernel.kernel_follow import KernelEvents, follow_stream
from watchkeeper.errors import StartRefused
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.model.events import Event, EventKind
from watchkeeper.sim import server

MARK = {"by": "watchkeeper:i1/a1"}


class Caller:
    """A plain HTTP client for the simulator under test."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data=content, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _read(answer.headers["content-type"], answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def kernel_record(self, containing: str, *, not_of_boots: Container[str] = (), node: str = "") -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.root}/kmsg?after=0", timeout=60) as stream:
            for line in stream:
                if containing.encode() in line:
                    record: dict[str, Any] = json.loads(line)
                    if record["boot"] not in not_of_boots and record["node"].startswith(node):
                        return record
        raise AssertionError("the stream ended")


def _read(kind: str, content: bytes) -> Any:
    return json.loads(content) if kind.startswith("application/json") else content.decode()


def test_a_page_of_another_site_cannot_inject_a_fault() -> None:
    def story(caller: Caller) -> None:
        host = caller.root.removeprefix("http://")
        statuses = []
        for headers in (
            {"Host": "evil.example"},
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {},
        ):
            content = json.dumps({"scenario": "xid-79"}).encode()
            request = urllib.request.Request(f"{caller.root}/faults", content, {"Host": host, **headers}, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    statuses.append(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    statuses.append(error.code)
        assert statuses == [403, 403, 403, 200]
        assert len(caller.call("GET", "/faults")[1]) == 1

    with_fleet(story)


def with_fleet(story: Callable[[Caller], None], *, speed: float = 1.0) -> float:
    """Serve 64 GPUs, run the story in a thread, and return how long stopping took."""

    async def run() -> float:
        settings = server.SimSettings(gpus=64, port=0, speed=speed)
        listener, stop = server.open_listener(settings), asyncio.Event()
        serving = asyncio.create_task(server.serve(settings, stop, listener=listener))
        listener.listen()
        try:
            await asyncio.to_thread(story, Caller(listener.getsockname()[1]))
        finally:
            before = time.monotonic()
            stop.set()
            await serving
        return time.monotonic() - before

    return asyncio.run(run())


def test_service_discovery_lists_pages_and_inventories() -> None:
    def story(fleet: Caller) -> None:
        _, targets = fleet.call("GET", "/sd")
        paths = [target["labels"]["__metrics_path__"] for target in targets]
        assert paths[:2] == ["/nodes/gpu-r01-01/metrics", "/nodes/gpu-r01-01/host/metrics"]
        assert paths[16:18] == ["/cluster/metrics", "/workloads/metrics"]
        assert {target["labels"]["job"] for target in targets[18:]} == {"vllm", "sglang", "workloads"}
        assert all(fleet.call("GET", path)[0] == 200 for path in paths)
        labels = targets[0]["labels"]
        assert targets[0]["targets"] == [fleet.root.removeprefix("http://")]
        assert labels["__meta_watchkeeper_expected_gpus"] == "8"
        assert (labels["__meta_watchkeeper_domain_rack"], labels["__meta_watchkeeper_domain_leaf"]) == (
            "r01",
            "leaf-01",
        )
        status, page = fleet.call("GET", labels["__metrics_path__"])
        assert (status, page.count("\nDCGM_FI_DEV_GPU_TEMP{")) == (200, 8)
        _, inventory = fleet.call("GET", "/nodes/gpu-r01-01/inventory")
        assert [gpu["index"] for gpu in inventory["gpus"]] == list(range(8))
        assert inventory["gpus"][3]["pci"] == "0000:5d:00"
        assert fleet.call("GET", "/nodes/gpu-r99-01/metrics")[0] == 404
        assert fleet.call("GET", "/-/ready")[0] == 200

    with_fleet(story)


def test_an_injected_fault_is_in_the_kernel_log_and_can_be_ended() -> None:
    def story(fleet: Caller) -> None:
        assert fleet.call("GET", "/faults") == (200, [])
        status, fault = fleet.call("POST", "/faults", {"scenario": "xid-79", "node": "gpu-r01-02", "gpu": 3})
        assert (status, fault["node"], fault["gpu"]) == (200, "gpu-r01-02", 3)
        assert fault["truth"] == {
            "cause": "gpu_fell_off_bus", "action": "reboot", "severity": "critical", "place": "gpu"
        }  # fmt: skip
        record = fleet.kernel_record("): 79,")
        assert sorted(record) == ["at", "boot", "node", "record", "seq"]
        assert record["node"] == "gpu-r01-02"
        assert fleet.call("DELETE", f"/faults/{fault['id']}")[0] == 200
        assert fleet.call("DELETE", f"/faults/{fault['id']}")[0] == 404

    with_fleet(story)


def test_a_gpu_that_is_lost_before_the_first_read_is_reported_with_its_index() -> None:
    async def read(root: str) -> Event:
        reading = KernelEvents("sim", GpuAddresses(partial(read_simulator_inventory, root)))
        async with aclosing(follow_stream(f"{root}/kmsg", time=ScaledClock())) as records:
            async for record in records:
                event = await reading.build_event(record)
                if event is not None and event.kind is EventKind.XID:
                    return event
        raise AssertionError("the stream ended")

    def story(fleet: Caller) -> None:
        fleet.call("POST", "/faults", {"scenario": "xid-79", "node": "gpu-r01-02", "gpu": 3})
        event = asyncio.run(read(fleet.root))
        assert (event.code, event.place.node, event.fields["gpu"]) == (79, "gpu-r01-02", "3")

    with_fleet(story)


def test_invalid_requests_get_an_error_with_the_valid_values() -> None:
    def story(fleet: Caller) -> None:
        status, answer = fleet.call("POST", "/faults", {"scenario": "xid-9797"})
        assert (status, answer["ok"]) == (400, False)
        assert "Scenarios: agent-gone" in answer["error"]
        assert fleet.call("POST", "/faults", {"scenario": "xid-79", "node": "nowhere"})[0] == 400
        assert fleet.call("POST", "/faults", [1])[0] == 400
        assert fleet.call("POST", "/cluster/nodes/gpu-r01-01/cordon", {})[0] == 400
        assert fleet.call("POST", "/cluster/nodes/gpu-r01-01/explode", MARK)[0] == 404
        assert fleet.call("GET", "/cluster/nodes/nowhere")[0] == 404
        assert fleet.call("GET", "/kmsg?after=soon")[0] == 400
        assert next(entry["name"] for entry in fleet.call("GET", "/scenarios")[1]) == "agent-gone"

    with_fleet(story)


def test_cluster_actions_work_over_http() -> None:
    def story(fleet: Caller) -> None:
        node = "/cluster/nodes/gpu-r01-01"
        assert fleet.call("POST", f"{node}/cordon", MARK)[1]["result"] == "done"
        assert fleet.call("POST", f"{node}/uncordon", {"by": "another"})[0] == 409
        assert fleet.call("POST", f"{node}/drain", MARK)[1]["node"]["workloads"] == []
        uuid = fleet.call("GET", "/nodes/gpu-r01-01/inventory")[1]["gpus"][0]["uuid"]
        assert fleet.call("POST", f"{node}/gpus/{uuid}/reset", MARK)[1]["result"] == "done"
        assert fleet.call("POST", f"{node}/reboot", MARK)[1]["node"]["state"] == "rebooting"
        assert fleet.call("GET", "/nodes/gpu-r01-01/metrics")[0] == 503
        view = fleet.call("GET", node)[1]
        assert (view["exists"], view["schedulable"], view["cordoned_by"]) == (True, False, MARK["by"])

    with_fleet(story)


@pytest.mark.slow
def test_a_rebooted_node_comes_back_and_an_open_stream_does_not_delay_the_stop() -> None:
    streams = []

    def story(fleet: Caller) -> None:
        assert fleet.call("GET", "/time")[1]["speed"] == 200
        streams.append(urllib.request.urlopen(f"{fleet.root}/kmsg?after=0", timeout=60))
        before = fleet.call("GET", "/nodes/gpu-r01-01/inventory")[1]["boot"]
        fleet.call("POST", "/cluster/nodes/gpu-r01-01/reboot", MARK)
        fleet.kernel_record("Linux version", not_of_boots={before}, node="gpu-r01-01")
        assert fleet.call("GET", "/nodes/gpu-r01-01/metrics")[0] == 200

    # The stop must not wait for streams that clients still read.
    assert with_fleet(story, speed=200) < 30.0
    streams[0].close()


def test_the_simulator_refuses_to_listen_beyond_loopback_and_on_a_taken_port() -> None:
    with pytest.raises(StartRefused, match="only on loopback"):
        server.open_listener(server.SimSettings(host="0.0.0.0"))
    with server.open_listener(server.SimSettings(port=0)) as taken:
        taken.listen()
        with pytest.raises(StartRefused, match="cannot be used"):
            server.open_listener(server.SimSettings(port=taken.getsockname()[1]))
