"""What kernel lines say, in every shape people and tools hand them over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import SHARED
from watchkeeper.model.events import EventKind
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.logs.kernel_log import GpuIdentity, KernelFact

CORPUS = SHARED / "corpus"
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


def fact(line: str) -> KernelFact:
    found = kernel_log.read_line(line)
    assert isinstance(found, KernelFact)
    return found


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[  423.915890] ",
        "[Wed Jun 24 12:44:48 2026] ",
        "Feb 15 04:37:42 node-a kernel: [82710.917400] ",
        "Mar 27 09:40:46 kernel: ",
        "kern  :warn  : 2025-01-21T04:41:44,283671+00:00 ",
        "<4>[ 1126.635824] ",
        "4,1042,532113221,-;",
    ],
)
def test_the_prefix_of_a_line_changes_nothing(prefix: str) -> None:
    found = fact(prefix + XID_79)
    assert (found.kind, found.code, found.pci) == (EventKind.XID, 79, "0000:3b:00")
    assert (found.pid, found.process, found.text) == (None, None, XID_79)


def test_an_xid_names_the_process_when_the_driver_knows_it() -> None:
    found = fact("NVRM: Xid (PCI:0000:0A:00): 31, pid=225966, name=cuda plot, Ch 00000010, intr 00000000. MMU Fault")
    assert (found.code, found.pci, found.pid, found.process) == (31, "0000:0a:00", 225966, "cuda plot")


def test_an_xid_without_pci_word_and_one_of_a_slice_are_read() -> None:
    assert fact("NVRM: Xid (0000:03:00): 14, Channel 00000001").pci == "0000:03:00"
    sliced = fact("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=208042, Contained: CE User Channel (0x9).")
    assert (sliced.code, sliced.pid, sliced.process) == (94, 208042, None)
    assert sliced.fields == {"gpu_instance": "05", "compute_instance": "01"}


def test_what_the_driver_asks_for_and_what_came_before_are_fields() -> None:
    asked = fact(
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    )
    assert asked.fields == {"recovery_action": "Drain and Reset"}
    follow_up = fact("NVRM: Xid (PCI:0009:01:00): 45, pid=7, name=python, Ch 00000008 caused by previous Xid 31")
    assert follow_up.fields == {"caused_by_xid": "31"}


def test_a_switch_error_keeps_its_severity_and_link() -> None:
    found = fact("nvidia-nvswitch3: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert (found.kind, found.code, found.pci) == (EventKind.SXID, 20034, "0000:a9:00")
    assert found.fields == {"switch": "3", "severity": "Fatal", "link": "30"}
    assert found.text.endswith("LTSSM Fault Up")


def test_a_lost_gpu_is_read_without_an_xid_and_without_an_address() -> None:
    found = fact("[1122228.074566] NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.")
    assert (found.kind, found.pci, found.code) == (EventKind.GPU_LOST, "0000:09:00", None)
    older = fact("NVRM: fallen off the bus and is not responding to commands.")
    assert (older.kind, older.pci) == (EventKind.GPU_LOST, None)


@pytest.mark.parametrize("aer", ["", "AER: "])
def test_a_pcie_error_names_port_severity_and_layer(aer: str) -> None:
    line = (
        f"pcieport 0000:00:01.1: {aer}PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)"
    )
    found = fact(line)
    assert (found.kind, found.pci) == (EventKind.PCIE_ERROR, "0000:00:01")
    assert found.fields == {"driver": "pcieport", "severity": "Uncorrected (Fatal)", "layer": "Data Link Layer"}


def test_a_machine_check_names_cpu_and_bank() -> None:
    found = fact("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400")
    assert (found.kind, found.fields) == (
        EventKind.MACHINE_CHECK,
        {"cpu": "3", "bank": "5", "status": "be00000000800400", "severity": "uncorrected"},
    )
    assert fact("mce: [Hardware Error]: Machine check events logged").kind is EventKind.MACHINE_CHECK


@pytest.mark.parametrize(
    ("line", "pid", "process", "scope"),
    [
        ("Out of memory: Killed process 4711 (python) total-vm:8kB, anon-rss:7kB", 4711, "python", "node"),
        ("Memory cgroup out of memory: Killed process 4711 (pt main) total-vm:8kB", 4711, "pt main", "cgroup"),
        ("Out of memory: Kill process 456 (python) score 50 or sacrifice child", 456, "python", "node"),
        ("Out of memory: Killed process 123, UID 48, (httpd).", 123, "httpd", "node"),
    ],
)
def test_an_oom_kill_names_its_victim(line: str, pid: int, process: str, scope: str) -> None:
    found = fact(line)
    assert (found.kind, found.pid, found.process, found.fields["scope"]) == (EventKind.OOM_KILL, pid, process, scope)


def test_a_new_kernel_is_a_boot() -> None:
    found = fact("Linux version 6.8.0-79-generic (buildd@lcy02) (x86_64-linux-gnu-gcc 13.3.0)")
    assert (found.kind, found.fields) == (EventKind.NODE_BOOT, {"kernel": "6.8.0-79-generic"})


def test_the_driver_naming_a_gpu_gives_address_and_uuid() -> None:
    assert kernel_log.read_line(f"NVRM: GPU at PCI:0000:9B:00: {UUID}") == GpuIdentity("0000:9b:00", UUID)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU4 RPC history (CPU -> GSP):",
        "NVRM: GPU Board Serial Number: 1650124014249",
        "MCE: In-kernel MCE decoding enabled.",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB",
        "nvidia-nvswitch0: open (major=510)",
        "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
        "mlx5_core 0000:41:00.0 enp65s0f0np0: Link up",
        "mlx5_core 0000:41:00.0: mlx5_cmd_out_err:803:(pid 9): ACCESS_REG(0x805) op_mod(0x0) failed, status bad",
        "mlx5_core 0000:41:00.0: mlx5_pcie_event:301:(pid 0): PCIe slot advertised sufficient power (27W).",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 507",
        "nvidia-nvlink: Unregistered Nvlink Core, major device number 507",
        "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0 0x4.",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
        "EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3 (INTERRUPT)",
        "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 5",
        "pcieport 0000:00:1c.5: AER: Correctable error message received from 0000:00:1c.5",
        "pcieport 0000:00:01.0: pciehp: Slot #1 AttnBtn- PwrCtrl- MRL- AttnInd-",
        "ceph: loaded (mds proto 32)",
        "",
    ],
)
def test_what_healthy_machines_say_is_no_event(line: str) -> None:
    assert kernel_log.read_line(line) is None


def test_a_record_of_the_kernel_is_believed_and_one_of_user_space_is_not() -> None:
    # Priority 4 is kernel/warning; 12 is 1 << 3 | 4: facility 1, user space.
    real = kernel_log.read_record(f"4,1042,532113221,-;{XID_79}\n SUBSYSTEM=pci\n")
    forged = kernel_log.read_record(f"12,1043,532113222,-,caller=T1;{XID_79}")
    assert real is not None
    assert forged is not None
    assert (real.level, real.sequence, real.since_boot_us, real.text) == (4, 1042, 532113221, XID_79)
    assert kernel_log.read_message(real) == fact(XID_79)
    assert kernel_log.read_message(forged) is None


def test_a_kernel_record_that_only_quotes_an_xid_is_not_one() -> None:
    record = kernel_log.read_record(f"4,1,2,-;audit: comm={XID_79}")
    assert record is not None
    assert kernel_log.read_message(record) is None


@given(st.text(max_size=80), st.sampled_from([needle for needle, _, _ in kernel_log.PATTERNS]), st.text(max_size=80))
def test_no_line_can_break_the_reader(before: str, needle: str, after: str) -> None:
    kernel_log.read_line(before + needle + after)
    kernel_log.read_record(before + needle + after)


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not part of the tree")
def test_every_collected_xid_line_gives_its_code() -> None:
    for row in (CORPUS / "xid_lines.tsv").read_text().splitlines():
        expected, _, line = row.partition("\t")
        found = fact(line)
        letter = "S" if found.kind is EventKind.SXID else ""
        assert f"{letter}{found.code}" == expected, line


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not part of the tree")
@pytest.mark.parametrize(
    ("name", "xids", "others"),
    [
        ("dmesg-with-xid-119.log", {119: 5}, {}),
        ("dmesg.decode.iso.log", {13: 16, 43: 1}, {EventKind.OOM_KILL: 3}),
        ("kmsg.1.log", {}, {}),
        ("pstore-panic-dmesg.txt", {}, {}),
    ],
)
def test_recorded_logs_give_what_happened(name: str, xids: dict[int, int], others: dict[EventKind, int]) -> None:
    lines = (CORPUS / "recordings" / "dmesg" / name).read_text(errors="replace").splitlines()
    facts = [found for found in map(kernel_log.read_line, lines) if isinstance(found, KernelFact)]
    codes = [found.code for found in facts if found.kind is EventKind.XID]
    assert {code: codes.count(code) for code in codes} == xids
    kinds = [found.kind for found in facts if found.kind is not EventKind.XID]
    assert {kind: kinds.count(kind) for kind in kinds} == others
