"""Facts of a node, read from files of the test, and a program that never answers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from watchkeeper.agent import host_page
from watchkeeper.agent.node_facts import NodeReader, Roots
from watchkeeper.kit.commands import CommandOutcome, CommandRunner
from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, nfs_stats, pci_sysfs, systemd_units
from watchkeeper.readers.node.node import NodeFacts

MOUNTSTATS = """device proc mounted on /proc with fstype proc
device nas:/a mounted on /mnt/my data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,hard
\tage:\t12345
\txprt:\ttcp 832 1 1 0 11 1234 1234 0 1234 0 2 0 0
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0 0
\t        READ: 1234 1240 2 271480 9876543 15 4821 4850 0
\t     GETATTR: 10 10 0 2000 2400 0 9 10
device tmpfs mounted on /run with fstype tmpfs
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "proc/stat": "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5\n",
            "proc/loadavg": "1.50 0.75 0.25 2/345 6789\n",
            "proc/meminfo": "MemTotal:   1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n",
            "proc/uptime": "3600.5 7000.0\n",
            "proc/self/mounts": "nas:/a /mnt/my\\040data nfs4 rw 0 0\nproc /proc proc rw 0 0\n",
            "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "proc/driver/nvidia/version": (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\n"
            ),
            "boot/vmlinuz-6.8.0-9-generic": "",
            "boot/vmlinuz-6.8.0-45-generic": "",
            "lib/modules/6.8.0-9-generic/modules.dep": "updates/dkms/nvidia.ko.zst: kernel/x.ko\n",
            "lib/modules/6.8.0-45-generic/modules.dep": "kernel/drivers/video/nvidiafb.ko:\n",
        },
    )


def test_the_facts_of_a_node_are_read_from_its_files(machine: Path) -> None:
    facts = NodeReader(Roots(machine / "proc", machine / "sys", machine)).read()
    assert (facts.cpus, facts.load, facts.driver) == (2, (1.5, 0.75, 0.25), "580.95.05")
    assert facts.memory == host.Memory(1_024_000, 409_600)
    assert facts.remote_mounts == (host.Mount("nas:/a", "/mnt/my data", "nfs4"),)
    page = host_page.render(facts, "n1")
    assert "# TYPE watchkeeper_host_memory_bytes gauge\n" in page
    assert 'watchkeeper_host_memory_bytes{part="available",Hostname="n1"} 409600\n' in page
    assert 'watchkeeper_host_version_info{kernel="6.8.0-45-generic",driver="580.95.05",Hostname="n1"} 1\n' in page


def test_every_fact_of_a_node_is_on_its_page(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = "Id=nvidia-persistenced.service\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\n"
    chrony = "A9FE0001,169.254.0.1,4,1.2,0.000012,0.00001,0.00002,1.0,0.0,0.01,0.0004,0.0001,16.1,Normal"
    write(machine, {"sys/class/hwmon/hwmon0/name": "psu", "sys/class/hwmon/hwmon0/fan1_input": "5400"})
    write(machine, {"bin/systemctl": f"#!/bin/sh\nprintf '{unit}'\n", "bin/chronyc": f"#!/bin/sh\necho {chrony}\n"})
    write(machine, {"proc/self/mountstats": MOUNTSTATS})
    for program in ("systemctl", "chronyc"):
        (machine / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:{os.environ['PATH']}")
    page = host_page.render(NodeReader(Roots(machine / "proc", machine / "sys", machine)).read(), "n1")
    for line in (
        'watchkeeper_host_unit_running{unit="nvidia-persistenced.service",state="active",Hostname="n1"} 1',
        'watchkeeper_host_clock_offset_seconds{source="chronyc tracking",Hostname="n1"} 1.2e-05',
        'watchkeeper_host_next_boot_has_driver{kernel="6.8.0-45-generic",Hostname="n1"} 0',
        'watchkeeper_host_fan_rpm{chip="psu",sensor="fan1",Hostname="n1"} 5400',
        'watchkeeper_host_mount_stalled{path="/mnt/my data",kind="nfs4",Hostname="n1"} 0',
        'watchkeeper_host_nfs_timeouts_total{path="/mnt/my data",Hostname="n1"} 2',
        "# TYPE watchkeeper_host_nfs_timeouts_total counter",
    ):
        assert f"{line}\n" in page


def test_nfs_statistics_are_read_from_the_kernel(tmp_path: Path) -> None:
    write(tmp_path, {"self/mountstats": MOUNTSTATS})
    (mount,) = nfs_stats.read(tmp_path)
    assert (mount.path, mount.operations, mount.retransmissions, mount.timeouts) == ("/mnt/my data", 1244, 6, 2)
    assert mount.milliseconds == 4860
    assert nfs_stats.read(tmp_path / "none") == []


def test_a_node_without_facts_has_an_empty_page_and_no_zeros(tmp_path: Path) -> None:
    facts = NodeReader(Roots(tmp_path, tmp_path, tmp_path)).read()
    assert (facts.cpus, facts.memory, facts.load, facts.driver, facts.next_boot) == (None, None, None, None, None)
    assert host_page.render(NodeFacts(), "n1") == ""


def test_a_new_kernel_without_an_nvidia_module_is_found_before_the_reboot(machine: Path) -> None:
    next_kernel = kernel_modules.find_next_kernel(machine, "6.8.0-9-generic")
    assert next_kernel == kernel_modules.NextBoot("6.8.0-45-generic", has_nvidia=False, is_running=False)
    assert kernel_modules.has_nvidia(machine, "6.8.0-9-generic") is True
    assert kernel_modules.has_nvidia(machine, "7.0") is None


def test_sensors_have_units_labels_and_their_own_alarms(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon3"
    files = {"name": "psu", "fan1_input": "0", "fan1_label": "FAN A", "fan1_fault": "1"}
    files |= {"temp1_input": "24500", "power1_average": "812000000", "fan2_input": "broken"}
    write(tmp_path, {f"{chip}/{name}": text for name, text in files.items()})
    assert hwmon.read(tmp_path / "sys") == [
        hwmon.Sensor("psu", "fan", "FAN A", 0.0, is_alarmed=True),
        hwmon.Sensor("psu", "power", "power1", 812.0),
        hwmon.Sensor("psu", "temperature", "temp1", 24.5),
    ]


def test_units_that_are_not_installed_are_omitted() -> None:
    text = (
        "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\n"
        "NRestarts=3\n\nId=nvidia-dcgm.service\nLoadState=not-found\nActiveState=inactive\n"
    )
    (unit,) = systemd_units.read(text)
    assert (unit.name, unit.is_running, unit.restarts) == ("nvidia-fabricmanager.service", False, 3)


def test_gpus_and_switches_are_found_on_the_bus_with_their_distance(tmp_path: Path) -> None:
    def place(address: str, way: str, kind: str, numa: str) -> None:
        real = tmp_path / "devices" / way / address
        write(real, {"class": kind, "vendor": "0x10de", "numa_node": numa, "current_link_width": "16"})
        link = tmp_path / "bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(real)

    place("0000:10:00.0", "pci0000:00/0000:00:01.0/0000:0f:00.0", "0x030200", "0")
    place("0000:11:00.0", "pci0000:00/0000:00:01.0/0000:0f:01.0", "0x030200", "0")
    place("0000:90:00.0", "pci0000:80/0000:80:01.0", "0x030200", "1")
    place("0000:05:00.0", "pci0000:00", "0x068000", "-1")
    switch, first, second, far = pci_sysfs.read(tmp_path)
    assert (switch.kind, switch.numa_node, first.pci, first.width) == ("nvswitch", None, "0000:10:00", 16)
    assert (pci_sysfs.topology_distance(first, second), pci_sysfs.topology_distance(first, far)) == ("PIX", "SYS")


def test_the_offset_of_the_clock_is_read_from_chrony() -> None:
    line = "A9FE0001,169.254.0.1,4,1.2,0.000012,0.00001,0.00002,1.0,0.0,0.01,0.0004,0.0001,16.1,Normal\n"
    chrony = clock_offset.read_chrony(line)
    assert chrony == clock_offset.ClockState(True, 0.000012, pytest.approx(0.0003), "chronyc tracking")
    assert clock_offset.read_chrony("506 Cannot talk to daemon") is None


def test_a_program_that_hangs_times_out() -> None:
    ask, started = CommandRunner(timeout_seconds=0.1), time.monotonic()
    assert ask.run(["sleep", "30"]).outcome is CommandOutcome.TIMED_OUT
    assert time.monotonic() - started < 25
    assert ask.stuck_count == 0, "a child that can be killed is not left behind"
    assert ask.run(["no-such-program"]).outcome is CommandOutcome.NOT_FOUND
    assert ask.run(["false"]).outcome is CommandOutcome.FAILED
    assert ask.run(["echo", "yes"]).text == "yes\n"


def test_every_host_family_is_explained_in_the_guide() -> None:
    guide = (ROOT / "docs/howto/agent.md").read_text()
    assert not [name for name in host_page.FAMILIES if f"`{name}`" not in guide]


def test_a_container_reads_the_mounts_of_the_machine_and_not_its_own(tmp_path: Path) -> None:
    root = tmp_path / "1/root"
    (root / "srv").mkdir(parents=True)
    write(tmp_path, {"self/mounts": "overlay / overlay rw 0 0\n", "1/mounts": "/dev/sdb1 /srv ext4 rw 0 0\n"})
    [mount] = host.read_mounts(tmp_path)
    assert mount == host.Mount("/dev/sdb1", "/srv", "ext4", str(root))
    space = host.read_space(mount)
    assert space is not None
    assert space.path == "/srv"


def test_a_container_that_may_not_look_at_the_machines_init_reads_its_own_mounts(tmp_path: Path) -> None:
    write(tmp_path, {"self/mounts": "/dev/sda1 /etc/hosts ext4 rw 0 0\n"})
    assert host.read_mounts(tmp_path) == [host.Mount("/dev/sda1", "/etc/hosts", "ext4")]
