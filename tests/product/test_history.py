"""History as a person works with it: draw it, try rules on it, take it away in a file, look at it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, Product, await_that, command, up

RULES = """
groups:
- name: mine
  interval: 5s
  rules:
  - {record: 'fleet:gpu_temp:max', expr: max(DCGM_FI_DEV_GPU_TEMP)}
  - {alert: Warm, expr: 'fleet:gpu_temp:max > 1', labels: {severity: info}}
  - {alert: Frozen, expr: 'fleet:gpu_temp:max < -100'}
"""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with up(tmp_path_factory.mktemp("history"), "--speed", "10") as running:
        await_that(running.scraped)
        count = "/api/v1/query?query=min(count_over_time(DCGM_FI_DEV_GPU_TEMP%5B5m%5D))"
        await_that(lambda: float(running.get(count)["data"]["result"][0]["value"][1]) >= 8)
        yield running


@pytest.fixture(scope="module")
def tape(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tapes") / "t.wkrec"
    ran = product.command("record", str(path), "--from", "-5m", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["bytes"]) == (0, path.stat().st_size), ran.stderr
    return path


@pytest.mark.slow
def test_a_range_is_drawn_when_asked_for(product: Product) -> None:
    drawn = product.command("query", "avg(DCGM_FI_DEV_GPU_TEMP)", "--from", "-1m", "--chart")
    assert "*" in drawn.stdout
    assert drawn.stdout.rstrip().endswith("* {}")
    listed = product.command("query", "avg(DCGM_FI_DEV_GPU_TEMP)", "--from", "-1m")
    assert listed.stdout.startswith("series  time")


@pytest.mark.slow
def test_rules_are_tried_on_the_history_of_a_hub_and_of_a_file(product: Product, tape: Path, tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(RULES)
    for arguments in (["--from", "-40s", "--hub", product.url], ["--record", str(tape)]):
        timeline = json.loads(command("rules", "replay", str(rules), *arguments, "--json").stdout)
        assert [episode["alert"] for episode in timeline["episodes"]] == ["Warm"]
        assert (timeline["fired"], timeline["failures"]) == (1, [])
    shown = command("rules", "replay", str(rules), "--record", str(tape))
    assert "1 alert would have fired" in shown.stdout
    assert "Warm" in shown.stdout


@pytest.mark.slow
def test_a_recording_says_what_it_holds_and_is_shown_as_a_hub(tape: Path, tmp_path: Path) -> None:
    about = json.loads(command("play", str(tape), "--json").stdout)
    assert (about["nodes"], about["gpus"], about["cluster"]) == (8, 64, "sim")
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    line = [*WATCHKEEPER, "play", str(tape), "--port", str(port)]
    with servers.running(line, ready_url=f"{url}/-/ready", log=tmp_path / "play.log"):
        answer = command("query", "count(DCGM_FI_DEV_GPU_TEMP)", "--hub", url, "--json")
    assert json.loads(answer.stdout)["result"][0]["value"][1] == "64"


@pytest.mark.slow
def test_a_file_that_is_there_is_not_replaced_by_accident(product: Product, tape: Path) -> None:
    ran = product.command("record", str(tape))
    assert (ran.returncode, "use --force to overwrite it" in ran.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("time", ["yesterday", "-5", "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_says_which_forms_there_are(product: Product, time: str) -> None:
    ran = product.command("query", "up", "--from", time)
    assert (ran.returncode, "is not a time: RFC 3339" in ran.stderr) == (2, True)


@pytest.mark.slow
def test_a_gpu_and_the_job_that_stands_still_without_it_are_one_incident(product: Product) -> None:
    """The last of this file, because its fleet has a history of minutes and lives ten times as fast."""
    assert product.command("sim", "inject", "xid-79").returncode == 0, "it strikes a GPU that trains"
    (lost,) = await_that(
        lambda: [incident for incident in product.incidents() if incident["cause"] == "gpu_fell_off_bus"]
    )
    at = f"/api/incidents/{lost['id']}"

    def job() -> str | None:
        places = [member["place"]["domain"] for member in product.get(at)["incident"]["members"]]
        return next((place.removeprefix("job=") for place in places if place), None)

    name = await_that(job, within_seconds=150)
    of_jobs = [incident["place"]["domain"] for incident in product.incidents() if incident["place"]["domain"]]
    assert f"job={name}" not in of_jobs, "nobody is told twice"
    detail = product.get(at)
    assert name in detail["incident"]["workloads"]
    hit = next(hit for hit in detail["blast"]["hits"] if hit["workload"] == name)
    assert hit["team"] != "unmapped"
    assert detail["blast"]["gpus"] == hit["gpus"] >= 8, (
        "all of its GPUs stand still, and its pods are not counted again"
    )
