"""`watchkeeper doctor stack` against a real Prometheus, and against what is no Prometheus."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner, Result

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.cli.doctor import doctor

PAGE = b"""# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",Hostname="n1"} 41
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="n1"} 93
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-1",Hostname="n1"} 0
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",Hostname="n1"} 0.7
"""
RULES = {
    "groups": [
        {
            "name": "theirs",
            "rules": [
                {"alert": "Hot", "expr": "DCGM_FI_DEV_GPU_TEMP > 85"},
                {"alert": "Retired", "expr": "DCGM_FI_DEV_RETIRED_PAGES > 100"},
                {"alert": "ByNode", "expr": 'DCGM_FI_DEV_GPU_TEMP{node="n1"} > 85'},
            ],
        }
    ]
}
DASHBOARD = {"title": "GPUs", "panels": [{"title": "Memory", "targets": [{"expr": "nvidia_smi_memory_used_bytes"}]}]}


class Exporter(http.server.BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, bytes]] = {"/metrics": PAGE, "/empty": b"up_to_date 1\n", "/html": b"<html>no</html>"}

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.pages[self.path])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def exporter() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, exporter: str) -> Iterator[str]:
    program, folder = servers.require("prometheus"), tmp_path_factory.mktemp("prometheus")
    jobs = [("dcgm", "/metrics", exporter), ("gpu-empty", "/empty", exporter), ("gpu-html", "/html", exporter)]
    # No program listens on the port of the discard protocol.
    jobs.append(("gpu-away", "/metrics", "127.0.0.1:9"))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": job, "metrics_path": path, "static_configs": [{"targets": [target]}]}
            for job, path, target in jobs
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(yaml.safe_dump(RULES))
    url = f"http://127.0.0.1:{servers.free_port()}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    line = [program, *options, f"--web.listen-address={url.removeprefix('http://')}"]
    with servers.running(line, ready_url=f"{url}/-/ready", log=folder / "log"):
        yield url


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(doctor.command, ["stack", *map(str, arguments)])


def settled(url: str, *more: str | Path) -> dict[str, dict[str, object]]:
    """The findings once every target was scraped and every rule evaluated."""

    def findings() -> dict[str, dict[str, object]]:
        plain = json.loads(ran("--prometheus", url, "--json", *more).stdout)
        by_check = {finding["check"]: finding for finding in plain["findings"]}
        down = [finding for finding in plain["findings"] if finding["check"] == "targets_down"]
        is_settled = len(down) == 2 and {"fields_missing", "rules_that_never_fire"} <= by_check.keys()
        return by_check if is_settled else {}

    return until(findings, what="Prometheus settles", interval_seconds=PROGRAM_SECONDS)


@pytest.mark.servers
def test_a_real_prometheus_is_judged_by_targets_rules_fields_and_dashboards(prometheus: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps(DASHBOARD))
    findings = settled(prometheus, "--dashboards", tmp_path)
    assert findings["rules_that_never_fire"]["evidence"] == [
        "there is no series DCGM_FI_DEV_RETIRED_PAGES: Retired",
        "no series DCGM_FI_DEV_GPU_TEMP has the label node: ByNode",
    ]
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL: uncorrectable" in str(findings["fields_missing"]["evidence"])
    assert "no Alertmanager" in str(findings["nobody_hears"]["title"])
    assert findings["dead_panels"]["evidence"] == ["Memory: there is no series nvidia_smi_memory_used_bytes"]
    assert "DCGM_FI_DEV_FB_USED * 2^20" in str(findings["dead_panels"]["fix"])


@pytest.mark.servers
def test_every_way_a_target_can_fail_is_told_apart(prometheus: str, exporter: str) -> None:
    settled(prometheus)
    is_empty = f"http://{exporter}/empty: up, no DCGM_FI_DEV_* series"
    until(lambda: is_empty in ran("--prometheus", prometheus).stdout, interval_seconds=PROGRAM_SECONDS)
    printed = ran("--prometheus", prometheus)
    assert printed.exit_code == 1
    assert is_empty in printed.stdout
    assert "1 of 1 targets of job gpu-away are down: connection refused" in printed.stdout
    assert "1 of 1 targets of job gpu-html are down: another program answers, not an exporter" in printed.stdout


def test_no_address_is_wrong_use_and_no_answer_is_cannot_tell() -> None:
    assert ran().exit_code == 2
    away = ran("--prometheus", f"http://127.0.0.1:{servers.free_port()}")
    assert (away.exit_code, "connection refused" in away.stdout) == (3, True)


def test_steps_are_printed_with_the_next_one_and_what_cannot_be_checked_from_here() -> None:
    printed = ran("--steps")
    assert printed.exit_code == 3
    assert "cannot be checked from here; by hand: swapon --show" in printed.stdout
    assert "On each node: sudo watchkeeper doctor stack --node" in printed.stdout
    assert "Next: step 1: " in printed.stdout
    plain = json.loads(ran("--node", "--json").stdout)
    read = {step["step"] for step in plain["steps"] if step["was_read"]}
    assert {step["where"] for step in plain["steps"] if step["step"] in read} == {"node"}
    failed = [step["step"] for step in plain["steps"] if step["state"] == "failed"]
    assert plain["next_step"] == (failed or [step["step"] for step in plain["steps"] if step["state"] == "unknown"])[0]


def test_a_server_that_is_not_prometheus_is_reported(exporter: str) -> None:
    result = ran("--prometheus", f"http://{exporter}/none/..")
    assert result.exit_code == 3


def test_files_are_still_accepted(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n")
    result = CliRunner().invoke(doctor.command, [str(log)])
    assert (result.exit_code, "gpu_fell_off_bus" in result.stdout) == (1, True)
