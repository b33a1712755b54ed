"""`watchkeeper up` as a person meets it: start, break, look, stop, start again."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, Product, await_that, command, up


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with up(tmp_path_factory.mktemp("product")) as running:
        await_that(running.scraped)
        yield running


@pytest.mark.slow
def test_a_query_answers_in_the_shape_of_prometheus(product: Product) -> None:
    answer = product.get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")
    assert answer["status"] == "success"
    assert answer["data"]["resultType"] == "vector"
    assert answer["data"]["result"][0]["value"][1] == "64"


@pytest.mark.slow
@pytest.mark.servers
def test_promtool_finds_no_problem_in_the_metrics_of_the_hub(product: Product) -> None:
    promtool = str(servers.require("promtool"))
    with urllib.request.urlopen(f"{product.url}/metrics", timeout=30) as page:
        checked = subprocess.run([promtool, "check", "metrics"], input=page.read(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_an_injected_xid_79_becomes_an_incident_with_cause_and_plan(product: Product) -> None:
    assert product.command("sim", "inject", "xid-79", "gpu-r01-02:3").returncode == 0
    incidents = await_that(lambda: [incident for incident in product.incidents() if incident["next_step"]])
    assert (incidents[0]["cause"], incidents[0]["severity"]) == ("gpu_fell_off_bus", "critical")
    assert incidents[0]["title"] == "GPU 3 on gpu-r01-02 fell off the bus"
    assert "reboot" in incidents[0]["plan"]
    shown = product.command("incidents", "show", incidents[0]["id"])
    assert (
        product.command("incidents", incidents[0]["id"].lower()).stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    )
    assert "Xid (PCI:0000:5d:00): 79" in shown.stdout
    assert "ruled out app_illegal_access" in shown.stdout


@pytest.mark.slow
def test_the_commands_say_what_a_hub_says(product: Product) -> None:
    table = product.command("query", "count by (modelName) (DCGM_FI_DEV_GPU_TEMP)")
    assert table.returncode == 0
    assert "NVIDIA H200" in table.stdout
    bad = product.command("query", "sum by (")
    assert bad.returncode == 1
    assert "1:9: unexpected end of input" in bad.stderr
    unknown = product.command("sim", "inject", "no-such-fault")
    assert unknown.returncode == 1
    assert "Scenarios: " in unknown.stderr
    assert "fan-failure" in unknown.stderr


@pytest.mark.slow
def test_a_second_hub_on_the_same_port_says_who_holds_it(product: Product, tmp_path: Path) -> None:
    port = product.url.rsplit(":", 1)[1]
    refused = command("up", "--port", port, "--data", str(tmp_path / "other"))
    assert refused.returncode == 2
    assert f"127.0.0.1:{port}: the port is in use by" in refused.stderr
    assert "--port" in refused.stderr


@pytest.mark.slow
def test_a_data_directory_in_use_or_of_another_program_is_refused(product: Product, tmp_path: Path) -> None:
    in_use = command("up", "--port", "0", "--data", str(product.log.parent / "kept"))
    assert in_use.returncode == 2
    assert "another Watchkeeper is using this data directory" in in_use.stderr
    (tmp_path / "letters.txt").write_text("mine")
    foreign = command("up", "--port", "0", "--data", str(tmp_path))
    assert foreign.returncode == 2
    assert "letters.txt" in foreign.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["up", "--scenario", "nope"], "no scenario `nope`"),
        (["up", "--host", "0.0.0.0"], "without tokens or users, everyone who can connect to this address is admin"),
        (["hub", "--config", "no-such-file.toml"], "no-such-file.toml: the settings file cannot be read"),
        (["query", "up", "--hub", "http://127.0.0.1:9"], "no hub answers"),
        (["explain", "xid", "seventy"], "seventy"),
    ],
)
def test_wrong_use_gets_one_clear_message(arguments: list[str], problem: str) -> None:
    answer = command(*arguments)
    assert answer.returncode in (1, 2, 3)
    assert problem in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_what_was_open_before_kill_9_is_open_after_a_restart(tmp_path: Path) -> None:
    port = servers.free_port()
    line = [*WATCHKEEPER, "up", "--gpus", "64", "--port", str(port), "--data", str(tmp_path / "kept")]
    url = f"http://127.0.0.1:{port}"
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        servers.wait_until_ready(first, f"{url}/-/ready", log=Path(os.devnull))
        running = Product(url, first, Path(os.devnull))
        running.command("sim", "inject", "xid-48")
        before = await_that(running.incidents)
        running.command("incidents", "ack", before[0]["id"])
    finally:
        first.kill()
        first.wait()
    with servers.running(line, ready_url=f"{url}/-/ready", log=tmp_path / "again.log") as again:
        after = Product(url, again, tmp_path / "again.log").get("/api/incidents?open=0")["incidents"]
    assert [(incident["id"], incident["cause"], incident["assignee"]) for incident in after] == [
        ("INC-1", "ecc_uncorrectable", "local")
    ]
