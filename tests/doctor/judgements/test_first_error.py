"""First error against cascade, application against hardware, culprit against victim."""

from __future__ import annotations

from tests.doctor.asking import ask, causes

XID = "[ 100.{at}] NVRM: Xid (PCI:0000:3b:00): {code}, pid=4711, name=python3, {text}\n"


def xids(*codes: int) -> str:
    return "".join(XID.format(at=at, code=code, text="Ch 00000008") for at, code in enumerate(codes))


def test_a_torn_down_channel_never_hides_the_gpu_that_fell_off_the_bus() -> None:
    answer = ask(xids(45, 45, 79, 45))
    assert causes(answer)[0] == "gpu_fell_off_bus"
    assert answer.findings[0].where["pci"] == "0000:3b:00"
    assert [event["code"] for event in answer.events] == [45, 45, 79, 45]


def test_an_illegal_access_stays_the_application_s_fault_whatever_follows_from_it() -> None:
    assert causes(ask(xids(31, 62, 45)))[0] == "app_illegal_access"


def test_a_memory_error_outranks_the_application_errors_around_it() -> None:
    answer = ask(xids(31, 48, 63, 45))
    assert causes(answer)[0] == "ecc_uncorrectable"
    assert any(text.startswith("app_illegal_access") for text in answer.findings[0].ruled_out)


def test_a_failed_repair_outranks_the_error_that_it_was_for() -> None:
    assert causes(ask(xids(48, 64)))[0] == "row_remap_failure"


def test_a_torn_down_channel_alone_asks_for_the_log_before_it() -> None:
    answer = ask(xids(45, 45))
    assert causes(answer) == ["unknown"]
    assert answer.findings[0].confidence <= 0.4
    assert "minutes before" in answer.findings[0].actions[0].do


def test_a_channel_that_the_driver_explains_is_that_fault() -> None:
    line = "NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149\n"
    assert causes(ask(line))[0] == "nvlink_error"


def test_the_rank_with_the_ecc_error_is_the_cause_and_the_waiting_rank_is_not() -> None:
    culprit = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    victim = (
        "[rank0]:[E810 05:46:05 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600072 milliseconds\n"
    )
    answer = ask(victim, culprit)
    assert causes(answer)[0] == "ecc_uncorrectable"
    assert answer.findings[0].where["rank"] == 5


def test_a_failed_shared_memory_segment_explains_the_sockets_that_closed_after_it() -> None:
    log = (
        "gpu01:1:2 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes, error: "
        "No space left on device (28)\n"
        "gpu01:1:3 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu01<41109>\n"
    )
    assert causes(ask(log))[0] == "shm_too_small"
