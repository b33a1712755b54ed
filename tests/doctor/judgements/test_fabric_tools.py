"""ibdiagnet, perfquery and ibqueryerrors: bad links, and management packets that were dropped without one."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

PERFQUERY = """# Port counters: Lid 12 port 1 (CapMask: 0x5300)
SymbolErrorCounter:..............{symbols}
LinkDownedCounter:...............0
VL15Dropped:.....................{drops}
"""
GREW = '-E- gpu07/U1/P1 - "{name}" increased during the run (difference value={value},difference allowed threshold=1)\n'
DIAG_FILE = "Port=1 Lid=0x0004 GUID=0xb8cef60300aa0200 Device=4129 Port Name=gpu07/U1/P1\n"


@pytest.mark.parametrize(
    "text",
    [
        PERFQUERY.format(symbols=0, drops=4711),
        PERFQUERY.format(symbols=0, drops=65535),
        'Errors for "gpu07 mlx5_3"\n   GUID 0xb8cef60300aa0201 port 1: [VL15Dropped == 1834] [PortXmitWait == 88]\n',
        "/sys/class/infiniband/mlx5_0/ports/1/counters/VL15_dropped:523\n",
        GREW.format(name="vl15_dropped", value=512),
        f"{DIAG_FILE}symbol_error_counter=0x0000\nvl15_dropped=0x01ff\n",
    ],
)
def test_dropped_management_packets_alone_are_no_cable(text: str) -> None:
    answer = ask(text)
    assert causes(answer) == ["ib_management_drops"]
    assert all("cable" not in step.do for step in answer.findings[0].actions)


def test_a_link_with_errors_too_is_named_first() -> None:
    assert causes(ask(PERFQUERY.format(symbols=812, drops=4711)))[:2] == ["ib_link_degraded", "ib_management_drops"]


def test_a_few_drops_are_normal() -> None:
    assert not ask(PERFQUERY.format(symbols=0, drops=3)).findings
    assert not ask(f"{DIAG_FILE}vl15_dropped=0x0003\n").findings


@pytest.mark.parametrize(
    ("port", "text"),
    [
        (1, "-I- Discovering ... 47 nodes discovered.\n" + GREW.format(name="symbol_error_counter", value=2)),
        (27, "-E- lid=0x0008 dev=51000 leaf2/U1/P27\n    symbol_error_counter       : 65535      (overflow)\n"),
        (1, f"{DIAG_FILE}link_down_counter=0x07\n"),
        (28, "-E- Link: leaf2/U1/P28<-->gpu12/U1/P1 - Unexpected actual link speed 14\n"),
        (7, "-E- Link: leaf2/U1/P7<-->gpu09/U1/P1 - Unexpected actual link width 1x\n"),
    ],
)  # fmt: skip
def test_a_bad_link_that_ibdiagnet_found_is_named_with_its_port(port: int, text: str) -> None:
    finding = ask(text).findings[0]
    assert (finding.cause, finding.where["port"]) == ("ib_link_degraded", port)


def test_a_port_that_ibv_devinfo_shows_as_down_is_found() -> None:
    text = "hca_id: mlx5_1\n  port:   1\n    state:   PORT_{state} (1)\n    link_layer:   InfiniBand\n"
    finding = ask(text.format(state="DOWN")).findings[0]
    assert (finding.cause, finding.where) == ("nccl_ib_link_error", {"hca": "mlx5_1", "port": 1})
    assert not ask(text.format(state="ACTIVE")).findings


SUMMARY = "-I- Stage                     Warnings   Errors     Comment\n-I- {stage:<25} 0          {errors}\n"


def test_the_summary_of_ibdiagnet_alone_tells_links_from_other_checks() -> None:
    assert causes(ask(SUMMARY.format(stage="Speed / Width checks", errors=2))) == ["ib_link_degraded"]
    assert causes(ask(SUMMARY.format(stage="Subnet Manager", errors=1))) == ["unknown"]
    assert causes(ask("-E- Not found Master Subnet Manager in fabric\n")) == ["unknown"]


def test_a_clean_run_of_ibdiagnet_is_recognised_and_has_no_fault() -> None:
    answer = ask("-I- Fabric Discover finished successfully\n" + SUMMARY.format(stage="Links Check", errors=0))
    assert ([given.kind for given in answer.inputs], answer.findings) == (["ibdiagnet"], ())
    assert answer.verdict == 0
