"""Prometheus' hash of a label set, by which `limit_ratio` selects series.

It is XXH64 over names and values, each after its length, as Prometheus stores them (model/labels,
labels_stringlabels.go; the hash: xxHash's doc/xxhash_spec.md). `aggregate` calls it; label sets of the same length are
hashed together, in columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from watchkeeper.query.engine import Floats
from watchkeeper.query.evaluate.values import DROPPED_NAME
from watchkeeper.store.series import Pairs

Words = npt.NDArray[np.uint64]

PRIMES = np.array(
    [0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5],
    dtype=np.uint64,
)
P1, P2, P3, P4, P5 = (PRIMES[at : at + 1] for at in range(5))
ZERO = np.zeros(1, dtype=np.uint64)
LANES = np.concatenate([P1 + P2, P2, ZERO, ZERO - P1])
LANE_ROTATIONS = (1, 7, 12, 18)
STRIPE_BYTES, WORD_BYTES, HALF_BYTES = 32, 8, 4
# A length from this value on is encoded as this byte and three more bytes.
LONG_TEXT = 255


def hash_fractions(series: Sequence[Pairs]) -> Floats:
    """The hash of each label set, scaled to 0..1; a dropped metric name does not count."""
    return hash_texts([encode_pairs(pairs) for pairs in series]).astype(np.float64) / 2.0**64


def encode_pairs(pairs: Pairs) -> bytes:
    texts = [text.encode() for pair in pairs if pair[0] != DROPPED_NAME for text in pair]
    return b"".join([_encode_length(len(text)) + text for text in texts])


def _encode_length(length: int) -> bytes:
    return bytes([length]) if length < LONG_TEXT else bytes([LONG_TEXT]) + length.to_bytes(3, "little")


def hash_texts(texts: Sequence[bytes]) -> Words:
    """XXH64 of each text, with seed 0."""
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        rows_of[len(text)].append(row)
    hashed = np.empty(len(texts), dtype=np.uint64)
    for length, rows in rows_of.items():
        table = np.frombuffer(b"".join([texts[row] for row in rows]), dtype=np.uint8).reshape(len(rows), length)
        hashed[rows] = _hash_rows(table)
    return hashed


def _hash_rows(table: npt.NDArray[np.uint8]) -> Words:
    """The hash of each row: first stripes of four words, then single words, then the remaining bytes."""
    count, length = table.shape
    word_count = length // WORD_BYTES
    words = np.ascontiguousarray(table[:, : word_count * WORD_BYTES]).view("<u8")
    in_stripes = length // STRIPE_BYTES * STRIPE_BYTES // WORD_BYTES
    mixed = _hash_stripes(words[:, :in_stripes]) if in_stripes else np.repeat(P5, count)
    mixed = mixed + np.uint64(length)
    for word in words[:, in_stripes:].T:
        mixed = _rotate(mixed ^ _round(ZERO, word), 27) * P1 + P4
    tail = table[:, word_count * WORD_BYTES :]
    if tail.shape[1] >= HALF_BYTES:
        half = np.ascontiguousarray(tail[:, :HALF_BYTES]).view("<u4")[:, 0].astype(np.uint64)
        mixed = _rotate(mixed ^ half * P1, 23) * P2 + P3
        tail = tail[:, HALF_BYTES:]
    for byte in tail.T.astype(np.uint64):
        mixed = _rotate(mixed ^ byte * P5, 11) * P1
    mixed = (mixed ^ mixed >> np.uint64(33)) * P2
    mixed = (mixed ^ mixed >> np.uint64(29)) * P3
    return mixed ^ mixed >> np.uint64(32)


def _hash_stripes(words: Words) -> Words:
    lanes = np.broadcast_to(LANES, (len(words), len(LANES)))
    for at in range(0, words.shape[1], len(LANES)):
        lanes = _round(lanes, words[:, at : at + len(LANES)])
    mixed = np.zeros(len(words), dtype=np.uint64)
    for lane, bits in zip(lanes.T, LANE_ROTATIONS, strict=True):
        mixed = mixed + _rotate(lane, bits)
    for lane in lanes.T:
        mixed = (mixed ^ _round(ZERO, lane)) * P1 + P4
    return mixed


def _round(lanes: Words, words: Words) -> Words:
    return _rotate(lanes + words * P2, 31) * P1


def _rotate(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
