"""Several logs on one clock: the first error is the first in time, and the node of the missing rank is looked at."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.doctor.asking import ask, causes
from watchkeeper.readers.logs import line_prefix

TIMEOUT = (
    "[rank{rank}]:[E810 05:46:0{rank}.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out.\n"
)
INIT = "gpu0{node}:10{rank}:10{rank} [{gpu}] NCCL INFO comm 0x55 rank {rank} nranks 4 cudaDev {gpu} busId 1000\n"
KILLED = "Out of memory: Killed process 102 (python) total-vm:8123456kB, anon-rss:8012345kB, file-rss:0kB\n"


def ranks_but_the_third() -> str:
    started = "".join(INIT.format(rank=rank, node=rank // 2, gpu=rank % 2) for rank in range(4))
    return started + TIMEOUT.format(rank=0) + TIMEOUT.format(rank=1) + TIMEOUT.format(rank=3)


def test_a_line_says_its_time_with_a_date_without_a_year_or_since_boot() -> None:
    whole = line_prefix.read_clock("2026-08-10T05:36:05Z ERROR x")
    syslog = line_prefix.read_clock("Aug 10 05:36:05 gpu01 kernel: [  812.25] NVRM: x")
    torch = line_prefix.read_clock("[rank1]:[E810 05:36:05.945860779 ProcessGroupNCCL.cpp:1899] x")
    assert whole == line_prefix.LineClock(at=datetime(2026, 8, 10, 5, 36, 5, tzinfo=UTC))
    assert syslog == line_prefix.LineClock(yearless=datetime(2000, 8, 10, 5, 36, 5, tzinfo=UTC), since_boot=812.25)
    assert torch == line_prefix.LineClock(yearless=datetime(2000, 8, 10, 5, 36, 5, 945860, tzinfo=UTC))
    assert line_prefix.read_clock("gpu01:1:2 [0] NCCL INFO x") is None
    assert line_prefix.read_clock("[E199 25:36:05 a.cc:1] x") is None


def test_the_error_that_came_first_is_named_wherever_its_log_stands() -> None:
    later = "2026-08-10 05:46:30 [rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    first = "2026-08-10 05:36:00 [rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    answer = ask(a_log=later + ranks_but_the_third(), b_log=first)
    assert causes(answer)[0] == "ecc_uncorrectable"
    assert "was the first error, at 05:36:00 (rank 2, node gpu01)" in answer.findings[0].why
    assert "before the first rank timed out" in answer.findings[0].why


def test_kernel_errors_on_the_node_of_the_missing_rank_name_the_rank() -> None:
    syslog = "Aug 10 05:36:02 gpu01 kernel: [90012.5] " + KILLED
    answer = ask(ranks_but_the_third(), syslog)
    finding = answer.findings[0]
    assert (finding.cause, finding.where["missing_rank"], finding.where["missing_node"]) == ("host_oom", 2, "gpu01")
    assert "The other ranks waited for rank" in finding.why
    assert "rank" not in finding.where


def test_an_event_on_another_node_is_not_joined_with_the_missing_rank() -> None:
    syslog = "Aug 10 05:36:02 gpu00 kernel: [90012.5] " + KILLED
    joined = [finding for finding in ask(ranks_but_the_third(), syslog).findings if "missing_rank" in finding.where]
    assert [finding.cause for finding in joined] == ["nccl_timeout_straggler"]


def test_a_kernel_log_named_after_its_node_is_that_node_s() -> None:
    answer = ask(ranks_but_the_third(), **{"bundle/gpu01/dmesg.txt": "[90012.5] " + KILLED})
    assert answer.findings[0].where["node"] == "gpu01"
    assert answer.events[0]["node"] == "gpu01"
    assert any("order unknown" in note and "dmesg" in note for note in answer.notes)


def test_seconds_since_boot_become_a_time_where_one_line_has_both_clocks() -> None:
    both = "2026-08-10T05:00:00+00:00 gpu01 kernel: [1000.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, Ch 1\n"
    bare = "[1060.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
    answer = ask(journal_log=both + bare.replace("[", "gpu01: [", 1), other_log="2026-08-10 04:00:00 ERROR nothing\n")
    assert [event["at"] for event in answer.events] == ["2026-08-10T05:00:00+00:00", "2026-08-10T05:01:00.500000+00:00"]


def test_a_date_without_a_year_gets_the_year_of_the_others_across_new_year() -> None:
    old = "Dec 31 23:59:58 gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=a, DBE\n"
    new = "2027-01-01T00:00:01Z gpu02 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen\n"
    assert [event["at"] for event in ask(new, old).events] == ["2026-12-31T23:59:58+00:00", "2027-01-01T00:00:01+00:00"]


def test_lines_of_one_log_keep_their_order_even_when_a_clock_steps_back() -> None:
    line = "2026-08-10 05:00:0{} gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=a, Ch 1\n"
    answer = ask(line.format(5, 48) + line.format(3, 63) + line.format(6, 45))
    assert [event["code"] for event in answer.events] == [48, 63, 45]
