"""Kernel records are numbered, limited, and start again at a boot."""

from __future__ import annotations

import itertools
import random
import re
from datetime import UTC, datetime, timedelta

from watchkeeper.sim import fleet, kernel_log

START = datetime(2026, 1, 5, tzinfo=UTC)


def test_records_have_the_format_of_dev_kmsg_and_increasing_times() -> None:
    layout = fleet.build_layout(gpus=8, seed=1)
    log = kernel_log.SimKernelLog(layout, random.Random(1), START)
    for second in range(50):
        for line in range(40):
            log.write(layout.nodes[0], f"line {line}", START + timedelta(seconds=second))
    heads = [re.match(r"6,(\d+),(\d+),-;line \d+\Z", record.record) for record in log.records_since(0)]
    numbers = [(int(head[1]), int(head[2])) for head in heads if head]
    assert len(numbers) == 2000
    assert all(later[0] == earlier[0] + 1 and later[1] > earlier[1] for earlier, later in itertools.pairwise(numbers))


def test_the_number_of_records_is_limited_and_older_ones_are_skipped() -> None:
    layout = fleet.build_layout(gpus=8, seed=1)
    log = kernel_log.SimKernelLog(layout, random.Random(1), START)
    at_boot = log.last_seq
    for _ in range(kernel_log.RING_LIMIT + 500):
        log.write(layout.nodes[0], "x", START)
    assert len(log.records_since(0)) == kernel_log.RING_LIMIT
    assert log.records_since(0)[0].seq == at_boot + 501
    assert [record.seq for record in log.records_since(log.last_seq - 2)] == [log.last_seq - 1, log.last_seq]
    assert log.records_since(log.last_seq + 100) == []


def test_the_driver_logs_the_address_of_a_gpu_once_per_boot() -> None:
    layout = fleet.build_layout(gpus=8, seed=1)
    log = kernel_log.SimKernelLog(layout, random.Random(1), START)
    node, gpu = layout.nodes[0], layout.nodes[0].gpus[3]
    text = f"NVRM: Xid (PCI:{gpu.kernel_pci}): 31, pid=1, name=a, Ch 1"
    assert [log.write_from_driver(node, gpu, text, now=START) for _ in range(2)] == [31, 31]
    log.reboot(node, START)
    log.write_from_driver(node, gpu, text, now=START)
    lines = [record.record.partition(";")[2].split(":")[0] for record in log.records_since(0)]
    boot = ["Linux version 6.8.0-79-generic (buildd@lcy02) (x86_64-linux-gnu-gcc 13.3.0)", "NVRM"]
    assert lines == [*boot, *["NVRM"] * 4, *boot, *["NVRM"] * 3]
    assert sum("GPU at PCI" in record.record for record in log.records_since(0)) == 2
