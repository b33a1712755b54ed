"""Pickles that would end the process, hang it or fill its memory are refused soon, with an error of ours."""

from __future__ import annotations

import json
import pickle
import random

import pytest

from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers import flight_recorder, safe_pickle

START = b"\x80\x04"
MEGABYTE_TEXT = b"X" + (1_000_000).to_bytes(4, "little") + b"x" * 1_000_000
BUILD_LIST = b"ctorch.jit._pickle\nbuild_intlist\n"


def doubled(times: int) -> bytes:
    """A list of two lists, each of which is the same list of two lists, and so on: 2 to the power of `times` values."""
    return b"]\x94" + b"".join(b"](h%bh%be\x94" % (2 * (bytes([number]),)) for number in range(times))


HOSTILE = {
    "a key whose hash overflows the stack": START + b"})" + b"\x85" * 200_000 + b"Ns.",
    "a mapping from pairs with such a key": START
    + b"ccollections\nOrderedDict\n])"
    + b"\x85" * 200_000
    + b"N\x86a\x85R.",
    "a deep value": START + b")" + b"\x85" * 200_000 + b".",
    "a value that contains itself": START + b"]\x94h\x00a.",
    "a small value with a text of 100 megabytes": START + doubled(25) + b".",
    "one text many times": START + MEGABYTE_TEXT + b"\x940(" + b"h\x00" * 1000 + b"l.",
    "a list copied by every instruction": START
    + (b"(" + b"N" * 50_000 + b"l\x940")
    + (BUILD_LIST + b"h\x00\x85R0") * 5_000
    + b"h\x00.",
    "a number of a million bytes": START + b"\x8b" + (1_000_000).to_bytes(4, "little") + b"\x7f" * 1_000_000 + b".",
    "an append to a number": START + b"K\x01K\x02a.",
    "an item of a list": START + b"]K\x01K\x02s.",
    "items of a text": START + b"X\x01\x00\x00\x00x(K\x01K\x02u.",
    "a constructor as a value": START + BUILD_LIST + b".",
    "a mark as a value": START + b"(.",
    "nothing": START + b".",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pickle_is_refused(raw: bytes) -> None:
    with pytest.raises(safe_pickle.UnsafePickle):
        flight_recorder.read("rank0", raw)


def test_shared_values_of_a_real_dump_are_read() -> None:
    frames = [{"name": "forward", "line": line} for line in range(10)]
    dump = {"version": "2.10", "entries": [{"frames": frames, "time_ns": 2**63 + number} for number in range(500)]}
    assert safe_pickle.loads(pickle.dumps(dump)) == dump


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sizes", ["[" * 500 + "]" * 500, "9" * 300])
def test_a_json_dump_has_the_same_limits(sizes: str) -> None:
    raw = b'{"entries": [{"input_sizes": %b}], "pg_config": {}}' % sizes.encode()
    with pytest.raises(WatchkeeperError, match="limit is"):
        flight_recorder.read("rank0", raw)


def test_a_number_too_long_for_a_rank_is_no_rank() -> None:
    raw = json.dumps({"entries": [], "pg_config": {"0": {"ranks": f"[0, {'9' * 5000}, 2]"}}}).encode()
    assert flight_recorder.read("rank0", raw).ranks == {"0": (0, 2)}


@pytest.mark.timeout(120)
def test_random_instructions_end_in_a_value_or_an_error_of_ours() -> None:
    rng = random.Random(7)
    pieces = [b"]", b"}", b")", b"(", b"N", b"K\x01", b"0", b"2", b"a", b"e", b"s", b"u", b"l", b"t", b"\x85", b"\x86"]
    pieces += [
        b"\x94",
        b"h\x00",
        b"h\x01",
        b"X\x01\x00\x00\x00k",
        BUILD_LIST,
        b"ccollections\nOrderedDict\n",
        b"R",
        b"1",
    ]
    for _ in range(20_000):
        raw = START + b"".join(rng.choices(pieces, k=rng.randint(1, 30))) + b"."
        try:
            value = safe_pickle.loads(raw)
        except safe_pickle.UnsafePickle:
            continue
        assert len(repr(value)) < 10_000
