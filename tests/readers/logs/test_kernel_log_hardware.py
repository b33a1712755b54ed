"""Kernel lines about hardware that carry no Xid, and which of them open an incident."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.support.paths import SHARED
from watchkeeper.incidents import signals
from watchkeeper.model import fleet
from watchkeeper.model.events import Event, EventKind
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.logs.kernel_log import KernelFact

CORPUS = SHARED / "corpus"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def fact(line: str) -> KernelFact:
    """As a log that somebody hands in, and as a record of the kernel: both must say the same."""
    found = kernel_log.read_line(f"Nov 15 05:52:15 n1 kernel: [82710.917400] {line}")
    record = kernel_log.read_record(f"4,7,8,-;{line}")
    assert record is not None
    assert isinstance(found, KernelFact)
    assert kernel_log.read_message(record) == found
    return found


def cause(line: str, **more: str) -> str | None:
    """The cause of the incident that the line opens; None if it opens none."""
    signal = signals.from_event(event(line, **more))
    return None if signal is None else signal.cause


def event(line: str, **more: str) -> Event:
    found = fact(line)
    place = fleet.Place("main", node="n1")
    return Event("id", found.kind, found.code, place, NOON, found.text, fields={**found.fields, **more})


@pytest.mark.parametrize(
    ("line", "driver_gpu"),
    [
        ("NVRM: GPU3 _kgspRpcRecvPoll: GSP RM heartbeat timed out", "3"),
        ("NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 322227881 heartbeat 0", "0"),
        ("NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!", None),
        ("NVRM: Timeout waiting for RPC from GSP! Expected function 4097 (GSP_INIT_DONE) (0x0 0x0).", None),
        ("NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM", "0"),
    ],
)
def test_firmware_that_does_not_answer_is_named_without_an_xid(line: str, driver_gpu: str | None) -> None:
    found = fact(line)
    assert (found.kind, found.fields.get("driver_gpu"), cause(line)) == (EventKind.GSP_ERROR, driver_gpu, "gsp_timeout")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        "NVRM: GPU2 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "nvidia-nvlink: Failed to train link 3",
    ],
)
def test_a_link_between_gpus_that_fails_is_named_without_an_xid(line: str) -> None:
    assert (fact(line).kind, cause(line)) == (EventKind.NVLINK_ERROR, "nvlink_error")


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x62:0x65:1860)", 6, "gpu_missing"),
        ("NVRM: RmInitAdapter failed! (0x62:0x65:2028)", 6, "gpu_missing"),
        ("NVRM: No NVIDIA devices probed.", 9, "driver_not_loaded"),
        ("NVRM: None of the NVIDIA graphics adapters were initialized!", 9, "driver_not_loaded"),
        ("NVRM: API mismatch: the client has the version 535.104.05, but", 18, "driver_library_mismatch"),
    ],
)
def test_a_driver_that_cannot_work_says_so_with_the_code_that_nvml_would_answer(
    line: str, code: int, expected: str
) -> None:
    assert (fact(line).kind, fact(line).code, cause(line)) == (EventKind.DRIVER_FAULT, code, expected)


@pytest.mark.parametrize(
    "problem",
    [
        "poll_health:825:(pid 0): device's health compromised - reached miss count",
        "poll_health:825: device's health compromised - reached miss count.",
        "poll_health:813:(pid 0): Fatal error 3 detected",
        "print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
        "synd 0x8: unrecoverable hardware error",
        "wait_func:1195:(pid 19): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
        "Port module event[error]: module 0, Cable error, Power budget exceeded",
    ],
)
def test_a_network_adapter_in_trouble_is_named_with_its_address(problem: str) -> None:
    line = f"mlx5_core 0000:D2:00.0: {problem}"
    assert (fact(line).kind, fact(line).pci, cause(line)) == (EventKind.NIC_ERROR, "0000:d2:00", "ib_link_degraded")


def test_a_link_that_goes_down_opens_what_ends_by_itself_when_it_stays_quiet() -> None:
    line = "mlx5_core 0000:12:00.0 ens3f0np0: Link down"
    found = fact(line)
    assert (found.kind, found.fields, cause(line)) == (
        EventKind.LINK_DOWN,
        {"interface": "ens3f0np0"},
        "ib_link_degraded",
    )
    stays = replace(event(line), kind=EventKind.NIC_ERROR)
    assert signals.clear_rule("ib_link_degraded", event(line)).quiet_seconds is not None
    assert signals.clear_rule("ib_link_degraded", stays).quiet_seconds is None


@pytest.mark.parametrize(
    ("line", "pci"),
    [
        (
            "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0012 address=0xa0 flags=0x0]",
            "0000:41:00",
        ),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0012 address=0xa0 flags=0x0020]", "0000:41:00"),
        ("DMAR: [DMA Read NO_PASID] Request device [0xc8:0x00.0] fault addr 0x1000 [fault reason 0x06]", "0000:c8:00"),
        ("DMAR: [DMA Write] Request device [c8:00.1] fault addr 1000 [fault reason 05] PTE Write", "0000:c8:00"),
        ("arm-smmu-v3 arm-smmu-v3.3.auto: event: F_TRANSLATION client: 0009:01:00.0 sid: 0x1", "0009:01:00"),
        ("arm-smmu-v3 arm-smmu-v3.3.auto: event 0x10 received:", None),
    ],
)
def test_an_access_that_the_iommu_stopped_is_named_with_the_device(line: str, pci: str | None) -> None:
    assert (fact(line).kind, fact(line).pci, cause(line)) == (EventKind.IOMMU_FAULT, pci, "iommu_fault")


def test_accesses_of_a_mainboards_own_graphics_are_nobodys_trouble() -> None:
    assert kernel_log.read_line("DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x1000") is None


@pytest.mark.parametrize(
    ("away", "back", "server"),
    [
        ("nfs: server filer-3 not responding, still trying", "nfs: server filer-3 OK", "filer-3"),
        ("lockd: server 10.4.0.7 not responding, still trying", "lockd: server 10.4.0.7 OK", "10.4.0.7"),
        (
            "LustreError: 167-0: work-OST0004-osc-ffff9c: This client was evicted by work-OST0004; in progress",
            "Lustre: work-OST0004-osc-ffff9c: Connection restored to work-OST0004_UUID (at 10.4.0.8@o2ib)",
            "work-OST0004",
        ),
        ("ceph: [0c1d2e 4711]: mds2 hung", "ceph: [0c1d2e 4711]: mds2 came back", "mds2"),
    ],
)
def test_a_file_server_that_is_away_opens_what_its_return_ends(away: str, back: str, server: str) -> None:
    lost, returned = fact(away), fact(back)
    assert (lost.kind, returned.kind) == (EventKind.STORAGE_LOST, EventKind.STORAGE_BACK)
    assert (lost.fields, returned.fields) == ({"server": server, "tells_return": "1"}, {"server": server})
    assert (cause(away), cause(back)) == ("storage_unreachable", None)


def test_nobody_will_tell_when_a_server_answers_whose_requests_were_given_up() -> None:
    line = "nfs: server filer-3 not responding, timed out"
    assert (fact(line).fields, cause(line)) == ({"server": "filer-3"}, "storage_unreachable")


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        (
            "pcieport 0000:16:02.0: AER: Uncorrectable (Fatal) error received (no details found)",
            "Uncorrectable (Fatal)",
        ),
        ("pcieport 0000:16:02.0: DPC: containment event, status:0x1f01 source:0x0000", "Uncorrected (contained)"),
        ("pcieport 0000:16:02.0: pciehp: Slot(1): Link Down", "Uncorrected (Link Down)"),
        (
            "pcieport 0000:16:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), id=0018(Requester)",
            "Uncorrected (Fatal)",
        ),
    ],
)
def test_a_bus_error_that_was_not_corrected_opens_an_incident(line: str, severity: str) -> None:
    found = fact(line)
    assert (found.kind, found.pci, found.fields["severity"]) == (EventKind.PCIE_ERROR, "0000:16:02", severity)
    assert cause(line) == "pcie_degraded"


@pytest.mark.parametrize("word", ["Corrected", "Correctable"])
def test_a_corrected_bus_error_opens_nothing_until_there_is_a_flood(word: str) -> None:
    line = f"pcieport 0000:00:03.0: AER: PCIe Bus Error: severity={word}, type=Physical Layer, (Receiver ID)"
    assert cause(line) is None
    assert cause(line, alike_left_out="40") == "pcie_degraded"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 5: be00000000800400", "uncorrected"),
        ("[Hardware Error]: CPU 1: Machine Check: 0 Bank 4: 9c00000000010151", "corrected"),
        ("[Hardware Error]: Corrected error, no action required.", "corrected"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "uncorrected"),
        ("[Hardware Error]: System Fatal error.", "uncorrected"),
        ("{1}[Hardware Error]: event severity: recoverable", "uncorrected"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0", "corrected"),
        ("EDAC MC1: 2 UE memory scrubbing error on unknown memory (node:1", "uncorrected"),
        ("Memory failure: 0x3f2a1c: Killing python:4711 due to hardware memory corruption", "uncorrected"),
        ("mce: Uncorrected hardware memory error in user-access at 3f2a1c080", "uncorrected"),
        ("mce: [Hardware Error]: Machine check events logged", None),
    ],
)
def test_host_hardware_opens_an_incident_only_where_it_could_not_correct_itself(
    line: str, severity: str | None
) -> None:
    found = fact(line)
    assert (found.kind, found.fields.get("severity")) == (EventKind.MACHINE_CHECK, severity)
    assert cause(line) == ("unknown" if severity == "uncorrected" else None)


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not part of the tree")
def test_a_recorded_boot_of_a_healthy_machine_opens_no_incident() -> None:
    lines = (CORPUS / "recordings" / "dmesg" / "pstore-panic-dmesg.txt").read_text(errors="replace").splitlines()
    assert not any(map(kernel_log.read_line, lines))
