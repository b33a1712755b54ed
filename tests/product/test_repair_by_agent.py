"""A fault, a cluster, a node's agent and a hub that dies: the GPU is reset once, after the drain, and not twice."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.product.hub_and_agent import Place, await_that
from tests.support.fake_nvml.driver import FakeNvml

GPU = "GPU-00000000-0000-0000-0000-000000000000"
# One node in a file, as scontrol shows and changes it.
SCONTROL = """#!/usr/bin/env python3
import pathlib, sys
kept = pathlib.Path(__file__).with_name("node")
if "update" in sys.argv:
    told = dict(word.split("=", 1) for word in sys.argv[2:])
    kept.write_text("IDLE+DRAIN " + told["Reason"] if told["State"] == "DRAIN" else "IDLE ")
state, _, reason = kept.read_text().partition(" ")
why = f" Reason={reason} [root@2026-11-15T09:00:00]" if reason else ""
print(f"NodeName=n1 Arch=x86_64 State={state} Partitions=p{why}")
"""
SETTINGS = """
[fleet]
sd_files = ["{folder}/nodes.json"]
[remediate]
mode = "act"
driver = "slurm"
slurm_commands = "{folder}"
"""


class Cluster(Place):
    """One Slurm node with one GPU, and programs that write down how they were called."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls, settings = root / "calls", root / "hub.toml"
        settings.write_text(settings.read_text() + SETTINGS.format(folder=root))
        (root / "node").write_text("IDLE ")
        (root / "nodes.json").write_text('[{"targets": ["127.0.0.1:1"], "labels": {"__meta_watchkeeper_node": "n1"}}]')
        (root / "proc/1").mkdir(parents=True)
        smi = f'#!/bin/sh\necho "$(cut -d" " -f1 {root}/node)" "$@" >> {self.calls}\necho was reset\n'
        for name, text in (("scontrol", SCONTROL), ("squeue", "#!/bin/sh\n"), ("nvidia-smi", smi)):
            (root / name).write_text(text)
            (root / name).chmod(0o700)

    def an_agent(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        where = ["--spool", str(self.root / "spool"), "--kmsg", str(self.root / "kmsg"), "--host-root", str(self.root)]
        who = ["--hub", self.hub.url, "--node", "n1", "--order-key", str(self.root / "n1.key")]
        tool = ["--allow-order", "reset_gpu", "--tool", f"nvidia-smi={self.root}/nvidia-smi"]
        return self.running("agent", "--listen", "none", *who, *where, *tool)

    def a_bad_row(self) -> dict[str, object] | None:
        event = {
            "id": "e1",
            "kind": "xid",
            "code": 48,
            "place": {"cluster": "main", "node": "n1", "gpu": GPU},
            "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}Z",
            "text": "NVRM: Xid (PCI:0000:10:00): 48, pid=1, An uncorrectable double bit error",
        }
        content, kind = json.dumps([event]).encode(), {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(f"{self.hub.url}/api/events", content, kind)
            with urllib.request.urlopen(request, timeout=60) as answer:
                repair: dict[str, object] = json.loads(answer.read())
                return repair
        except OSError:
            return None

    def repair(self) -> dict[str, Any]:
        listed: list[dict[str, Any]] = self.hub.repairs().plain["repairs"]
        return listed[0] if listed else {}

    def repair_that(self, says: str, words: str) -> dict[str, object] | None:
        state = self.repair()
        return state if words in str(state.get(says)) else None


@pytest.mark.slow
def test_a_reset_is_ordered_after_the_drain_and_done_once_though_the_hub_dies(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fake = Cluster(tmp_path), FakeNvml(library, tmp_path / "control")
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setitem(os.environ, name, fake.environment[name])
    with place.a_hub() as first:
        await_that(place.a_bad_row)
        await_that(lambda: place.repair_that("waits_for", "the agent of n1 has not fetched the order reset_gpu"))
        first.kill()
    with place.a_hub(), place.an_agent():
        validating = await_that(lambda: place.repair_that("state", "validating"))
        receipts: Any = validating["receipts"]
        done = [
            (receipt["result"], receipt["text"]) for receipt in receipts if receipt["action"]["kind"] == "reset_gpu"
        ]
        assert done == [("done", f"n1: {GPU} was reset and answers")]
    assert place.calls.read_text() == f"IDLE+DRAIN --gpu-reset -i {GPU}\n"
