"""Remote write as bytes: what is written is read again, and what is broken or too large is refused whole."""

from __future__ import annotations

import contextlib
import struct
import time

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.loading import instant
from tests.query.remote.remote_writing import AT_MS, label_sets, points
from watchkeeper import errors
from watchkeeper.kit.protobuf import encode_varint
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, STALE_BITS, Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.query.remote import remote_write, sender
from watchkeeper.query.remote.remote_write import WriteLimits
from watchkeeper.store.head.head import Head
from watchkeeper.store.interfaces import Appended

written = st.lists(st.tuples(label_sets, st.lists(points, min_size=1, max_size=5)), max_size=5)


def packed(message: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message))


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + encode_varint(len(content)) + content


def one_series(*samples: bytes, name: str = "x") -> bytes:
    label = field(0x0A, field(0x0A, b"__name__") + field(0x12, name.encode()))
    return field(0x0A, label + b"".join(field(0x12, sample) for sample in samples))


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


@given(written)
def test_what_is_written_is_read_again_bit_by_bit(series: list[tuple[Labels, list[tuple[int, float]]]]) -> None:
    columns = [(labels, [at for at, _ in row], [value for _, value in row]) for labels, row in series]
    decoded = remote_write.decode(remote_write.encode(columns))
    assert [(labels, times.tolist(), bits(values.tolist())) for labels, times, values in decoded.series] == [
        (labels, times, bits(values)) for labels, times, values in columns
    ]
    assert decoded.dropped == {}


def test_a_stale_marker_keeps_its_bits_both_ways() -> None:
    [(_, _, values)] = remote_write.decode(remote_write.encode([(Labels({"__name__": "x"}), [AT_MS], [STALE])])).series
    assert values.view(np.uint64).tolist() == [STALE_BITS]


def test_senders_may_omit_zeros() -> None:
    """Protocol buffers 3 does not write a field that is 0."""
    message = one_series(b"", b"\x10\x05", b"\x09" + struct.pack("<d", 2.5))
    [(labels, times, values)] = remote_write.decode(packed(message)).series
    assert (str(labels), times.tolist(), values.tolist()) == ("x", [0, 5, 0], [0.0, 0.0, 2.5])


def test_unsupported_parts_are_counted_and_the_rest_is_stored() -> None:
    sample = field(0x12, b"\x10\x05")
    name = field(0x0A, field(0x0A, b"__name__") + field(0x12, b"x"))
    twice = field(0x0A, field(0x0A, b"a") + field(0x12, b"1")) * 2
    # One bucket without a count for it.
    broken = field(0x22, field(0x5A, b"\x10\x01"))
    with_extras = field(0x0A, name + sample + field(0x1A, b"") + broken)
    unnamed, ambiguous = field(0x0A, twice[: len(twice) // 2] + sample * 2), field(0x0A, name + twice + sample)
    decoded = remote_write.decode(packed(unnamed + with_extras + ambiguous))
    assert [(str(labels), times.tolist()) for labels, times, _ in decoded.series] == [("x", [5])]
    assert decoded.dropped == {"invalid_histogram": 1, "invalid_labels": 3}


def test_exemplars_are_kept_beside_their_series() -> None:
    name = field(0x0A, field(0x0A, b"__name__") + field(0x12, b"x_total"))
    trace = field(0x0A, field(0x0A, b"trace_id") + field(0x12, b"ab"))
    body = packed(field(0x0A, name + field(0x1A, trace + b"\x11" + struct.pack("<d", 2.5) + b"\x18\x05")))
    engine = EmbeddedEngine(Head())
    assert remote_write.append_request(body, engine.appender) == Appended(0, {})
    assert remote_write.response_for(remote_write.append_request(body, engine.appender)) == (204, "")
    [(series, kept)] = engine.exemplars([[Matcher("__name__", MatchOp.EQUAL, "x_total")]], 0, 10)
    assert (str(series), kept) == ("x_total", [Exemplar(Labels({"trace_id": "ab"}), 2.5, 5)])


def test_metadata_reaches_the_engine() -> None:
    engine = EmbeddedEngine(Head())
    about = b"\x08\x02" + field(0x12, b"power") + field(0x22, b"Board power") + field(0x2A, b"watts")
    assert remote_write.append_request(packed(field(0x1A, about)), engine.appender) == Appended(0, {})
    assert engine.metadata() == {"power": ("gauge", "Board power", "watts")}


def test_received_samples_can_be_asked_for_and_old_ones_are_counted() -> None:
    engine = EmbeddedEngine(Head())
    body = remote_write.encode([(Labels({"__name__": "x", "gpu": "0"}), [1000, 2000, 1500], [1.0, 2.0, 3.0])])
    taken = remote_write.append_request(body, engine.appender)
    assert taken == Appended(2, {"out_of_order": 1})
    assert instant(engine, "x", "3s") == {'x{gpu="0"}': 2.0}
    assert remote_write.response_for(taken) == (400, "2 samples were stored, others were dropped: 1 out_of_order")
    assert remote_write.response_for(Appended(2, {"exemplar": 1})) == (204, "")


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (WriteLimits(max_bytes=10), "bytes, the limit is 10"),
        (WriteLimits(max_unpacked_bytes=100), "bytes when unpacked, the limit is 100"),
        (WriteLimits(max_series=2), "3 series, the limit is 2"),
        (WriteLimits(max_samples=5), "6 samples, the limit is 5"),
    ],
)
def test_each_limit_is_told_with_both_numbers(limits: WriteLimits, problem: str) -> None:
    series = [(Labels({"__name__": "x", "gpu": str(gpu)}), [1, 2], [1.0, 2.0]) for gpu in range(3)]
    with pytest.raises(errors.WireError, match=problem):
        remote_write.decode(remote_write.encode(series), limits)


MANY = 20_000_000
NAMED = field(0x0A, field(0x0A, b"__name__") + field(0x12, b"x"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (bytes(2 * MANY), "field number 0 at byte"),
        (b"\x20\x00" * MANY, "10001 unknown fields, the limit is 10000"),
        (b"\x0a\x00" * MANY, "200001 series, the limit is 200000"),
        (b"\x1a\x00" * MANY, "100001 descriptions, the limit is 100000"),
        (field(0x0A, b"\x0a\x00" * MANY), "4000001 labels, the limit is 4000000"),
        (field(0x0A, NAMED + b"\x12\x00" * MANY), "1000001 samples, the limit is 1000000"),
        (field(0x0A, NAMED + b"\x1a\x00" * MANY), "100001 exemplars, the limit is 100000"),
        (field(0x0A, NAMED + b"\x22\x00" * MANY), "100001 histograms, the limit is 100000"),
        (field(0x0A, NAMED + b"\x28\x00" * MANY), "10001 unknown fields, the limit is 10000"),
        (field(0x0A, NAMED + field(0x12, b"\x10\x00" * MANY)), "more than 8 fields at byte"),
        (field(0x0A, NAMED + field(0x22, b"\x5a" + field(0x5A, b"\x02" * MANY))), "bytes of histograms, the limit is"),
    ],
)
def test_a_small_body_of_endless_fields_is_refused_while_it_is_read(message: bytes, problem: str) -> None:
    body, began = packed(message), time.process_time()
    with pytest.raises(errors.WireError, match=problem):
        remote_write.decode(body)
    assert time.process_time() - began < 5.0


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    claims_4_gigabytes = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    with pytest.raises(errors.WireError, match="4294967295 bytes when unpacked, the limit is"):
        remote_write.decode(claims_4_gigabytes)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(content: bytes, is_packed: bool) -> None:
    with contextlib.suppress(errors.WireError):
        decoded = remote_write.decode(packed(content) if is_packed else content)
        assert all(len(times) == len(values) > 0 for _, times, values in decoded.series)


@given(st.data())
def test_a_request_cut_anywhere_keeps_nothing(data: st.DataObject) -> None:
    series = [(Labels({"__name__": "x", "gpu": str(gpu)}), [AT_MS], [1.0]) for gpu in range(3)]
    message = bytes(cramjam.snappy.decompress_raw(remote_write.encode(series)))
    ends = {len(message) * turn // 3 for turn in range(4)}
    cut = data.draw(st.integers(1, len(message) - 1).filter(lambda at: at not in ends))
    engine = EmbeddedEngine(Head())
    with pytest.raises(errors.WireError, match="truncated or invalid"):
        remote_write.append_request(packed(message[:cut]), engine.appender)
    assert len(engine.head) == 0


def test_a_huge_label_is_left_to_the_limits_of_the_store() -> None:
    engine = EmbeddedEngine(Head())
    body = remote_write.encode([(Labels({"__name__": "x", "big": "y" * 1_000_000}), [AT_MS], [1.0])])
    assert remote_write.append_request(body, engine.appender) == Appended(0, {"limit": 1})


@pytest.mark.parametrize(
    ("content_type", "encoding", "is_refused"),
    [
        ("application/x-protobuf", "snappy", False),
        (None, None, False),
        ("application/x-protobuf;proto=prometheus.WriteRequest", "snappy", False),
        ("application/x-protobuf;proto=io.prometheus.write.v2.Request", "snappy", True),
        ("application/json", "snappy", True),
        ("application/x-protobuf", "zstd", True),
    ],
)
def test_only_the_first_version_of_the_protocol_is_accepted(
    content_type: str | None, encoding: str | None, is_refused: bool
) -> None:
    assert (remote_write.unsupported_reason(content_type, encoding) is not None) is is_refused


def test_samples_of_one_series_are_sent_in_their_order() -> None:
    first, second = Labels({"__name__": "a"}), Labels({"__name__": "b"})
    rows = sender.group_by_series([Sample(first, 2, 1.0), Sample(second, 1, 5.0), Sample(first, 3, 2.0)])
    assert list(rows) == [(first, [2, 3], [1.0, 2.0]), (second, [1], [5.0])]
