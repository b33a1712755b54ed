"""Exports of a program: where they are set, no port opened by accident, and no effect of an error."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.instrument import pages
from tests.support.waiting import until
from watchkeeper.instrument import exports as exporting
from watchkeeper.instrument.exports import ExportRefused, Exports
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import TrainingMonitor


def monitor(exports: Exports, rank: int = 0) -> TrainingMonitor:
    return TrainingMonitor("llama/7b", exports, place=Placement(rank, 4, local_rank=rank, node="gpu-7"))


def test_a_page_is_served_in_the_accepted_format() -> None:
    with monitor(Exports(port=0)) as made:
        address = made.exporter.address
        assert address is not None
        assert address.startswith("127.0.0.1:")
        kind, plain = pages.fetch(address)
        assert kind.startswith("text/plain; version=0.0.4")
        assert pages.read(plain)
        kind, open_metrics = pages.fetch(address, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert pages.read(open_metrics, openmetrics=True).keys() == pages.read(plain).keys()


def test_each_rank_of_a_node_has_its_own_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with monitor(Exports(port=port - 1), rank=1) as made:
        assert made.exporter.address == f"127.0.0.1:{port}"


def test_a_port_in_use_is_logged_once_and_the_program_continues(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, monitor(Exports(port=taken.getsockname()[1])) as made:
        made.step(loss=1.0)
        assert made.exporter.address is None
    assert "cannot listen on" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gpu-7", "10.1.2.3"])
def test_a_port_is_not_opened_to_the_network_unless_that_is_set(host: str) -> None:
    with pytest.raises(ExportRefused, match="is_open=True"):
        Exports(port=0, host=host)
    assert Exports(port=0, host=host, is_open=True).host == host


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"port": 70_000}, "70000 is not between"),
        ({"announce": Path("sd")}, "no port to announce"),
        ({"gateway": "gateway:9091"}, "is not a URL"),
    ],
)
def test_invalid_export_settings_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ExportRefused, match=says):
        Exports(**wrong)  # type: ignore[arg-type]


def test_environment_variables_set_the_exports() -> None:
    given = {"PORT": "9500", "HOST": "0.0.0.0", "OPEN": "1", "TEXTFILE": "/run/text", "SECONDS": "5"}
    exports = exporting.from_environment({f"WATCHKEEPER_METRICS_{name}": text for name, text in given.items()})
    assert exports == Exports(9500, "0.0.0.0", is_open=True, textfile=Path("/run/text"), every_seconds=5.0)
    assert exporting.from_environment({}) == Exports()
    with pytest.raises(ExportRefused, match="must be numbers"):
        exporting.from_environment({"WATCHKEEPER_METRICS_PORT": "http"})


def test_a_free_port_is_announced_in_a_target_list(tmp_path: Path) -> None:
    with monitor(Exports(port=0, announce=tmp_path)) as made:
        (listed,) = tmp_path.glob("*.json")
        assert json.loads(listed.read_text())[0]["targets"] == [made.exporter.address]
    assert not list(tmp_path.iterdir())


def test_a_rank_that_ends_late_keeps_the_target_list_of_its_successor(tmp_path: Path) -> None:
    first = monitor(Exports(port=0, announce=tmp_path))
    with monitor(Exports(port=0, announce=tmp_path)) as second:
        first.close()
        (listed,) = tmp_path.glob("*.json")
        assert json.loads(listed.read_text())[0]["targets"] == [second.exporter.address]


def test_a_page_on_all_addresses_is_announced_by_the_nodes_name(tmp_path: Path) -> None:
    with monitor(Exports(port=0, host="0.0.0.0", is_open=True, announce=tmp_path)):
        (listed,) = tmp_path.glob("*.json")
        assert json.loads(listed.read_text())[0]["targets"][0].startswith("gpu-7:")


def test_a_file_is_replaced_atomically_and_deleted_at_the_end(tmp_path: Path) -> None:
    written = tmp_path / "watchkeeper_llama-7b_2.prom"
    with monitor(Exports(textfile=tmp_path, every_seconds=0.05), rank=2) as made:
        until(written.exists)
        made.step()
        until(lambda: b"training_iterations_total" in written.read_bytes() and _steps(written.read_bytes()) == 1)
    assert not list(tmp_path.iterdir())


def _steps(content: bytes) -> float:
    return next(
        number for labels, number in pages.read(content).items() if labels["__name__"] == "training_iterations_total"
    )


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """A Pushgateway as far as a client sees it; it fails the first call."""
    got: list[tuple[str, str, bytes]] = []

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            got.append((self.command, self.path, body))
            self.send_response(500 if len(got) == 1 else 202)
            self.end_headers()

        do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_gateway_gets_one_group_for_each_rank_until_the_program_is_over(
    gateway: tuple[str, list[tuple[str, str, bytes]]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url, got = gateway
    with monitor(Exports(gateway=url, every_seconds=0.05), rank=3):
        until(lambda: len(got) >= 3)
    methods, paths = [method for method, _, _ in got], {path for _, path, _ in got}
    assert methods[-1] == "DELETE"
    assert set(methods[:-1]) == {"PUT"}
    # llama/7b and 3 in base64: a name may have a slash.
    assert paths == {"/metrics/job/workloads/job_name@base64/bGxhbWEvN2I=/rank@base64/Mw=="}
    assert pages.read(got[1][2])
    assert caplog.text.count("metrics export failed, retrying output=gateway") == 1
    assert caplog.text.count("metrics export recovered output=gateway") == 1


@pytest.mark.slow
def test_a_full_disk_does_not_affect_the_training(tmp_path: Path) -> None:
    program = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from watchkeeper.instrument.exports import Exports\n"
        "from watchkeeper.instrument.training import TrainingMonitor\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "with TrainingMonitor('a', Exports(textfile=Path(sys.argv[1]), every_seconds=0.05)) as monitor:\n"
        "    for _ in range(100):\n"
        "        monitor.step(loss=1.0)\n"
        "        time.sleep(0.005)\n"
        "print(monitor.clock.steps)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout == "100\n"
    assert ran.stderr.count("metrics export failed, retrying output=textfile error=[Errno 27] File too large") == 1
    assert not list(tmp_path.iterdir())


def test_a_client_that_sends_nothing_does_not_block_the_end_of_the_program() -> None:
    with monitor(Exports(port=0)) as made:
        host, _, port = str(made.exporter.address).partition(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET /other HTTP/1.0\r\n\r\n")
            assert b"404" in silent.recv(100)


def test_a_program_that_never_closes_its_monitor_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from watchkeeper.instrument.exports import Exports\n"
        "from watchkeeper.instrument.inference import InferenceMonitor\n"
        "folder = Path(sys.argv[1])\n"
        "monitor = InferenceMonitor('meta/llama', '3', Exports(port=0, announce=folder))\n"
        "print(len(list(folder.glob('watchkeeper_meta-llama_*.json'))))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr, list(tmp_path.iterdir())) == ("1\n", "", [])
