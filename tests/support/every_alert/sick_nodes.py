"""Two nodes whose agents are real processes: one with old GPUs and failing adapters, one that loses its driver.

Their GPUs, kernel logs and file trees are those of the test; `break_down` makes them ill while the agents run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen

from tests import servers
from tests.support.fake_nvml import driver
from tests.support.running_product import WATCHKEEPER
from watchkeeper.agent.diag_page import ResultFile
from watchkeeper.model import diag

WORN, BARE = "worn-node", "bare-node"
ADAPTER = "sys/class/infiniband/mlx5_0"
PCIE = "sys/bus/pci/devices/0000:18:00.0"
FILES = {
    "proc/sys/kernel/random/boot_id": "b00t",
    "proc/sys/kernel/osrelease": "6.8.0-45-generic",
    "boot/vmlinuz-6.8.0-45-generic": "",
    "lib/modules/6.8.0-45-generic/modules.dep": "updates/dkms/nvidia.ko.zst: kernel/x.ko",
    f"{ADAPTER}/node_guid": "b8ce:f603:0000:0100",
    f"{ADAPTER}/ports/1/state": "4: ACTIVE",
    f"{ADAPTER}/ports/1/phys_state": "5: LinkUp",
    f"{ADAPTER}/ports/1/rate": "400 Gb/sec (4X NDR)",
    f"{ADAPTER}/ports/1/link_layer": "InfiniBand",
    f"{ADAPTER}/ports/1/counters/symbol_error": "0",
    f"{PCIE}/class": "0x030200",
    f"{PCIE}/vendor": "0x10de",
    f"{PCIE}/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
}
# What NVML answers of a GPU before Ampere, by field: pages retired for single-bit and double-bit errors, and pending.
HEALTHY_PAGES = {"Field.29": 2, "Field.30": 0, "Field.31": 0}
WORN_PAGES = {"Field.29": 40, "Field.30": 23, "Field.31": 1}
XID = "4,{number},{micros},-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid=1, name=python3, Graphics Exception\n"


@dataclass(slots=True)
class SickNodes:
    """`targets` is a file_sd file of both agents."""

    targets: Path
    _folder: Path
    _gpus: Mapping[str, driver.FakeNvml]
    _started: contextlib.ExitStack
    _addresses: Mapping[str, str]
    _options: Mapping[str, tuple[str | Path, ...]]
    _agents: dict[str, Popen[bytes]] = field(default_factory=dict)

    def start(self, node: str) -> None:
        root, address = self._folder / node, self._addresses[node]
        command = [*WATCHKEEPER, "agent", "--node", node, "--cluster", "sim", "--listen", address, "--no-ipmi"]
        self._agents[node] = self._started.enter_context(
            servers.running(
                [*command, "--host-root", root, "--spool", root / "spool", *self._options[node]],
                ready_url=f"http://{address}/-/healthy",
                log=self._folder / f"{node}.log",
                environment=self._gpus[node].environment,
            )
        )

    def break_down(self) -> None:
        root = self._folder / WORN
        write(root, {"boot/vmlinuz-6.8.0-90-generic": "", "lib/modules/6.8.0-90-generic/modules.dep": ""})
        write(root, {f"{PCIE}/aer_dev_fatal": "TOTAL_ERR_FATAL 3"})
        counter = root / ADAPTER / "ports/1/counters/symbol_error"
        counter.unlink()
        os.mkfifo(counter)
        for name, value in WORN_PAGES.items():
            self._gpus[WORN].tell(0, name, value)
        failed = diag.TestResult("memory", driver.UUID(1), diag.DiagVerdict.FAIL, "it read back another pattern")
        ResultFile(root / "spool").add(diag.DiagReport(1, WORN, datetime.now(UTC), 1.0, (), (failed,)))
        # As on a full disk: no file takes more bytes. What does not fit into memory either is lost.
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(self._agents[WORN].pid, resource.RLIMIT_FSIZE, (0, most))
        micros = time.monotonic_ns() // 1000
        with (root / "kmsg").open("a") as kernel_log:
            kernel_log.writelines(
                XID.format(number=at, micros=micros + at, bus=at % 251, code=1 + at % 170) for at in range(1, 2000)
            )
        # The file that syslog wrote kernel lines to is one no more.
        (self._folder / BARE / "kern.log").unlink()
        (self._folder / BARE / "kern.log").mkdir()
        # A boot of a kernel without the driver.
        self._gpus[BARE].tell(driver.EVERY, Init=driver.DRIVER_NOT_LOADED)
        servers.stop(self._agents[BARE])
        self.start(BARE)


@contextlib.contextmanager
def running(folder: Path, *, library: Path, hub: str, counters: Path) -> Iterator[SickNodes]:
    """Both agents, until the block ends; `library` is the fake NVML, `counters` a counters file of dcgm-exporter."""
    gpus = {node: driver.FakeNvml(library, folder / f"{node}.nvml") for node in (WORN, BARE)}
    addresses = {node: f"127.0.0.1:{servers.free_port()}" for node in gpus}
    targets = [{"targets": [addresses[node]], "labels": {"__meta_watchkeeper_node": node}} for node in gpus]
    (folder / "agents.json").write_text(json.dumps(targets))
    gpus[WORN].tell(0, Name="Tesla V100-SXM2-32GB")
    for name, value in HEALTHY_PAGES.items():
        gpus[WORN].tell(0, name, value)
    unreachable = f"http://127.0.0.1:{servers.free_port()}"
    options: dict[str, tuple[str | Path, ...]] = {
        WORN: ("--hub", unreachable, "--counters", counters, "--kmsg", folder / WORN / "kmsg"),
        BARE: ("--hub", hub, "--kernel-log", folder / BARE / "kern.log"),
    }
    with contextlib.ExitStack() as started:
        nodes = SickNodes(folder / "agents.json", folder, gpus, started, addresses, options)
        for node in gpus:
            write(folder / node, {**FILES, "kmsg": "", "kern.log": ""})
            nodes.start(node)
        yield nodes


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
