"""Numbers that no program writes, in what strangers hand in: Python reads no 5,000 digits, and a power is none."""

from __future__ import annotations

import json

import pytest

from watchkeeper.readers import flight_recorder
from watchkeeper.readers.clusters import kubernetes_text
from watchkeeper.readers.fabric import infiniband_text

ENDLESS = "9" * 5000


@pytest.mark.parametrize("count", [ENDLESS, "²", "many"])
def test_a_count_of_gpus_that_is_no_number_is_unknown(count: str) -> None:
    assert kubernetes_text.gpu_count({"nvidia.com/gpu": count}) is None


@pytest.mark.parametrize(
    "lines",
    [
        ["# Port counters: Lid 4 port 1", f"SymbolErrorCounter:....{ENDLESS}", "LinkDownedCounter:.....7"],
        ['Errors for "leaf2"', f"   GUID 0x1 port 1: [SymbolErrorCounter == {ENDLESS}] [LinkDownedCounter == 7]"],
    ],
    ids=["perfquery", "ibqueryerrors"],
)
def test_a_counter_of_more_than_64_bits_is_none_and_the_others_are_read(lines: list[str]) -> None:
    [port] = infiniband_text.read_counters(lines)
    assert {name: value for name, (value, _) in port.counters.items()} == {"LinkDownedCounter": 7}


def test_a_file_named_after_a_rank_that_no_job_has_is_of_an_unknown_rank() -> None:
    dump = json.dumps({"version": "2.4", "entries": []}).encode()
    assert flight_recorder.read(f"nccl_trace_rank_{ENDLESS}", dump).rank is None
    assert flight_recorder.read("nccl_trace_rank_12.json", dump).rank == 12
