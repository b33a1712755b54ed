"""A scan of selected GPUs: which facts it removes and which it keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.diagnose.scan.command import run, scan
from tests.diagnose.scan.healthy import GPU, NODE, SWITCH, kernel
from tests.support.fake_nvml import driver
from watchkeeper.diagnose.scan.examine import examine, select_gpus
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanFault, ScanVerdict
from watchkeeper.model.gpu_selectors import parse_selection
from watchkeeper.readers.node.pci_sysfs import DeviceKind, PciDevice

OTHER = replace(GPU, uuid="GPU-2", index=1, pci="0000:11:00")
BUS = (PciDevice("0000:10:00", DeviceKind.GPU), PciDevice("0000:11:00", DeviceKind.GPU), SWITCH)
XIDS = kernel(
    "NVRM: Xid (PCI:0000:11:00): 79, pid=7, name=python, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:10:00): 63, pid=7, name=python, Row Remapper",
)
FACTS = ScanFacts(replace(NODE, pci=BUS), (GPU, OTHER), kernel=XIDS, watched_seconds=2)
LOST = ScanFault("gpu_fell_off_bus", "it is lost", "GPU-2")
DRIVERLESS = ScanFault("driver_not_loaded", "NVML reports DRIVER_NOT_LOADED")


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> driver.FakeNvml:
    made = driver.FakeNvml(library, tmp_path / "control", gpus=2)
    made.environment["WATCHKEEPER_GPU_GROUPS"] = str(tmp_path / "groups.json")
    return made


def test_facts_about_other_gpus_are_removed() -> None:
    facts = select_gpus(replace(FACTS, faults=(LOST, DRIVERLESS)), parse_selection(["0"]))
    assert [gpu.uuid for gpu in facts.gpus] == ["GPU-1"]
    assert [device.pci for device in facts.node.pci] == ["0000:10:00", SWITCH.pci]
    assert [fact.pci for fact in facts.kernel or ()] == ["0000:10:00"]
    assert facts.faults == (DRIVERLESS,)


def test_a_chosen_gpu_that_does_not_answer_is_never_healthy() -> None:
    facts = select_gpus(replace(FACTS, gpus=(GPU,), faults=(LOST,), kernel=XIDS), parse_selection(["0-1"]))
    assert [fault.cause for fault in facts.faults] == ["gpu_fell_off_bus", "gpu_missing"]
    assert len(facts.kernel or ()) == 2, "what may be about the missing one stays"
    assert examine(facts).verdict is ScanVerdict.UNHEALTHY


def test_without_any_gpu_a_chosen_one_stays_unknown() -> None:
    nothing = ScanFacts(NODE, faults=(DRIVERLESS,), kernel=())
    assert examine(select_gpus(nothing, parse_selection(["0"]))).verdict is ScanVerdict.UNKNOWN


@pytest.mark.slow
def test_a_group_stands_for_its_gpus_in_every_command(fake: driver.FakeNvml, tmp_path: Path) -> None:
    made = run(fake.environment, "gpus", "group", "create", "first", "10:00.0")
    assert (made.returncode, made.stdout) == (0, f"first: 10:00.0, saved in {tmp_path / 'groups.json'}\n")
    listed = run(fake.environment, "gpus", "group", "list", "--json")
    assert json.loads(listed.stdout) == {"groups": {"first": ["10:00.0"]}}
    gpus = json.loads(run(fake.environment, "gpus", "-g", "first", "--json").stdout)
    assert [gpu["index"] for gpu in gpus["gpus"]] == [0]
    lines = run(fake.environment, "dmon", "-g", "first", "-c", "1", "-d", "0.5").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["#GPU", "0"]
    fake.tell(1, Temperature=driver.NOT_SUPPORTED)
    assert scan(fake.environment, tmp_path, "-g", "first").returncode == 0
    assert scan(fake.environment, tmp_path, "-i", "1").returncode == 3
    assert run(fake.environment, "gpus", "group", "delete", "first").returncode == 0


def test_a_mig_instance_has_its_own_line(fake: driver.FakeNvml) -> None:
    fake.tell(0, MigMode=1, slices=1)
    fake.tell(0, "slice0.id", 5)
    fake.tell(0, "slice0.UUID", "MIG-8a11")
    fields = ("-e", "DCGM_FI_DEV_FB_USED", "-c", "1", "-d", "0.5")
    lines = run(fake.environment, "dmon", *fields, "-i", "0/1,MIG-8a").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [["0/1", "N/A"], ["0/5", "0"]]
    shown = json.loads(run(fake.environment, "gpus", "--json", "-i", "MIG-8a11").stdout)["gpus"]
    assert [(gpu["index"], gpu["slices"]) for gpu in shown] == [(0, {"MIG-8a11": 5})]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("dmon", "-i", "7"), 2, "no GPU 7 on this node"),
        (("dmon", "-i", "x"), 2, "`x` does not select a GPU"),
        (("dmon", "-g", "nope"), 2, "group `nope` does not exist"),
        (("scan", "-g", "a", "-i", "1"), 2, "use either -i or -g"),
        (("gpus", "-i", "7"), 1, "This node has no GPU 7."),
        (("gpus", "group", "delete", "nope"), 2, "no group nope"),
    ],
)
def test_an_unknown_selection_is_named(
    fake: driver.FakeNvml, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ran = run(fake.environment, *arguments)
    assert (ran.returncode, words in ran.stderr) == (code, True), ran.stderr
