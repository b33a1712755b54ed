"""The small tables: each file is read completely, and an unknown code is None."""

from __future__ import annotations

from tests.doctor.asking import ask, causes
from watchkeeper.catalogue import causes as catalogue
from watchkeeper.catalogue import tables


def test_known_codes_have_their_rows_and_unknown_ones_none() -> None:
    retries = tables.find_completion(12)
    assert retries is not None
    assert retries.name == "RETRY_EXC_ERR"
    assert tables.find_completion(99) is None
    aborted = tables.find_exit_code(-6)
    assert aborted is not None
    assert aborted.signal == "SIGABRT"
    switch = tables.find_sxid(20034)
    assert switch is not None
    assert tables.find_sxid(1) is None
    assert {row.bit for row in tables.clock_reasons()} >= {0x20, 0x40, 0x80}


def test_an_nvlink_xid_is_decoded_from_its_registers() -> None:
    line = "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0)\n"
    assert causes(ask(line))[0] == "nvlink_error"
    assert tables.find_nvlink_fault(144, "SAW_MVB", 0x2) is not None
    assert tables.find_nvlink_fault(144, "NO_SUCH_UNIT", 0x2) is None


def test_dcgm_names_lead_to_causes() -> None:
    assert causes(ask('{"error": "DCGM_FR_PENDING_ROW_REMAP", "gpu": 3}'))[0] == "row_remap_pending"


def test_a_node_with_fewer_adapters_than_its_peers_is_named() -> None:
    line = "gpu0{}:1:2 [0] NCCL INFO NET/IB : Using {} [RO]; OOB eth0:10.0.0.1<0>\n"
    whole = line.format(1, "[0]mlx5_0:1/IB [1]mlx5_1:1/IB")
    answer = ask(whole + line.format(2, "[0]mlx5_0:1/IB"))
    assert (causes(answer)[0], answer.findings[0].where["node"]) == ("ib_link_degraded", "gpu02")
    assert not ask(whole + line.format(2, "[0]mlx5_0:1/IB [1]mlx5_1:1/IB")).findings


def test_dcgm_s_incidents_are_known_by_name_older_name_and_number() -> None:
    rows = tables._incidents()
    assert {row.code for row in rows.values()} == set(range(133)) - {130}
    assert rows["85"] == rows["DCGM_FR_PENDING_ROW_REMAP"]
    assert rows["DCGM_FR_CLOCK_THROTTLE_THERMAL"].cause == "thermal_throttle"
    cause_ids = {row.cause for row in catalogue.all_causes()} | {""}
    assert {row.cause for row in rows.values()} <= cause_ids


def test_a_diagnostic_that_gives_only_the_number_leads_to_the_cause_and_its_action() -> None:
    answer = ask('{"DCGM Diagnostic": {"tests": [{"warnings": [{"error_id": 80, "error_severity": 2}]}]}}')
    assert causes(answer)[0] == "row_remap_failure"
    assert "field diagnostic" in answer.findings[0].actions[0].do


def test_an_incident_of_the_test_itself_is_no_fault_of_the_gpu() -> None:
    assert causes(ask('{"error": "DCGM_FR_EUD_NON_ROOT_USER", "gpu": 3}')) in ([], ["unknown"])
