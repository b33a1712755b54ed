"""Matrices of numbers as few bytes, without losing a bit.

What exporters write are decimals, so a matrix of floats becomes whole numbers and a power of ten; what does
not fit (NaN, the stale marker, empty slots, −0, long fractions) is kept beside it as it is. Whole numbers become
differences along the row, the narrowest unsigned type, planes of equal bytes, and zstd. `block_writer` packs
with it, `block` unpacks; docs/reference/storage.md has the layout.
"""

from __future__ import annotations

import itertools
import struct
import sys

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.store.columns import Floats, Ints

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# On GPU telemetry, 1 is 1 % larger, and 9 costs three times the time for half a percent.
LEVEL = 3
MAX_EXPONENT = 9
# Above this share of values that are no decimals, plain bits are smaller than exceptions.
MAX_ODD_SHARE = 8
SAMPLED_ROWS = 32
MAX_ORDER = 2
# kind, exponent, order, width of first columns, width of the others, rows, columns, odd values, bytes of each part
HEADER = struct.Struct("<BBBBBxxxIIIIII")
INTS, DECIMALS, BITS = range(3)
Bytes = npt.NDArray[np.uint8]


def compress(content: bytes, level: int = LEVEL) -> bytes:
    return bytes(zstd.compress(content, level))


def decompress(content: bytes) -> bytes:
    try:
        return bytes(zstd.decompress(content))
    except zstd.ZstdError as error:
        raise errors.StoreError(f"compressed bytes cannot be read: {error}") from error


def pack_ints(matrix: Ints) -> bytes:
    """Rows of whole numbers; rows that grow evenly, such as times, cost next to nothing."""
    return _pack(INTS, 0, np.ascontiguousarray(matrix, dtype=np.int64), odd_at=None, odd_bits=None)


def unpack_ints(packed: bytes) -> Ints:
    kind, _, ints, _, _ = _unpack(packed)
    if kind != INTS:
        raise errors.StoreError(f"packed numbers are of kind {kind} where whole numbers ({INTS}) belong")
    return ints


def pack_floats(matrix: Floats) -> bytes:
    """Rows of floats, each row one series; every bit comes back."""
    matrix = np.ascontiguousarray(matrix, dtype=np.float64)
    bits = matrix.view(np.int64)
    exponent = _exponent(matrix[:: max(1, len(matrix) // SAMPLED_ROWS)])
    ints, fits = _as_decimals(matrix, exponent)
    odd_at = np.flatnonzero(~fits)
    if len(odd_at) * MAX_ODD_SHARE > matrix.size and _odd_numbers(matrix, fits) * MAX_ODD_SHARE > matrix.size:
        return _pack(BITS, 0, bits, odd_at=None, odd_bits=None)
    odd_bits = bits.reshape(-1)[odd_at]
    if len(odd_at):
        ints = _filled(ints, fits)
    return _pack(DECIMALS, exponent, ints, odd_at=odd_at, odd_bits=odd_bits)


def unpack_floats(packed: bytes) -> Floats:
    kind, exponent, ints, odd_at, odd_bits = _unpack(packed)
    if kind == BITS:
        return ints.view(np.float64)
    floats: Floats = ints / 10.0**exponent if exponent else ints.astype(np.float64)
    if len(odd_at):
        floats.view(np.int64).reshape(-1)[odd_at] = odd_bits
    return floats


def _as_decimals(matrix: Floats, exponent: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The matrix times ten to the exponent as whole numbers, and where dividing them again gives the same bits."""
    scale = 10.0**exponent
    with np.errstate(all="ignore"):
        ints = (np.rint(matrix * scale) if exponent else matrix).astype(np.int64)
        return ints, (ints / scale).view(np.int64) == matrix.view(np.int64)


def _exponent(rows: Floats) -> int:
    """The power of ten that makes the most numbers of some rows whole, the smallest such."""
    best, most = 0, -1
    numbers = int(np.count_nonzero(np.isfinite(rows)))
    for exponent in range(MAX_EXPONENT + 1):
        count = int(np.count_nonzero(_as_decimals(rows, exponent)[1]))
        if count > most:
            best, most = exponent, count
        if most >= numbers:
            break
    return best


def _odd_numbers(matrix: Floats, fits: npt.NDArray[np.bool_]) -> int:
    """How many values that are numbers do not fit; markers and gaps compress well wherever they are."""
    return int(np.count_nonzero(~fits & ~np.isnan(matrix)))


def _filled(ints: Ints, fits: npt.NDArray[np.bool_]) -> Ints:
    """Where a value is kept elsewhere, the one before it: a difference of nothing."""
    columns = np.where(fits, np.arange(ints.shape[1]), 0)
    np.maximum.accumulate(columns, axis=1, out=columns)
    filled = np.take_along_axis(np.where(fits, ints, 0), columns, axis=1)
    return np.asarray(filled)


def _differences(ints: Ints, order: int) -> Ints:
    for _ in range(order):
        ints = np.diff(ints, axis=1)
    return ints


def _order(ints: Ints) -> int:
    """How often to take differences: what makes the bits of some rows the fewest."""
    rows = ints[:: max(1, len(ints) // SAMPLED_ROWS)]
    costs = [
        float(np.log2(1.0 + np.abs(_differences(rows, order).astype(np.float64))).sum())
        for order in range(min(MAX_ORDER, ints.shape[1] - 1) + 1)
    ]
    return int(np.argmin(costs))


def _narrow(ints: Ints) -> tuple[int, bytes]:
    """Width and bytes of the numbers as the narrowest unsigned ones, their bytes of equal weight side by side."""
    zigzag = ((ints << 1) ^ (ints >> 63)).view(np.uint64)
    largest = int(zigzag.max()) if zigzag.size else 0
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    narrow = np.ascontiguousarray(zigzag.astype(f"<u{width}"))
    return width, narrow.view(np.uint8).reshape(-1, width).T.tobytes()


def _widen(planes: bytes, width: int, shape: tuple[int, int]) -> Ints:
    if len(planes) != width * shape[0] * shape[1]:
        raise errors.StoreError(f"packed numbers have {len(planes)} bytes, {width * shape[0] * shape[1]} belong there")
    narrow = np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(width, -1).T).view(f"<u{width}")
    zigzag = narrow.reshape(shape).astype(np.uint64)
    ints = (zigzag >> np.uint64(1)).view(np.int64)
    ints ^= -(zigzag & np.uint64(1)).view(np.int64)
    return ints


def _pack(kind: int, exponent: int, ints: Ints, *, odd_at: Ints | None, odd_bits: Ints | None) -> bytes:
    rows, columns = ints.shape
    order = _order(ints) if ints.size else 0
    first_width, firsts = _narrow(_heads(ints, order))
    width, planes = _narrow(_differences(ints, order))
    parts = [compress(firsts), compress(planes)]
    if odd_at is not None and odd_bits is not None and len(odd_at):
        parts.append(compress(np.diff(odd_at, prepend=0).astype("<u4").tobytes() + odd_bits.astype("<i8").tobytes()))
    else:
        parts.append(b"")
    odd = 0 if odd_at is None else len(odd_at)
    sizes = [len(part) for part in parts]
    return HEADER.pack(kind, exponent, order, first_width, width, rows, columns, odd, *sizes) + b"".join(parts)


def _heads(ints: Ints, order: int) -> Ints:
    """What the differences leave out: the first number of the row, of its differences, and so on."""
    return (
        np.stack([_differences(ints[:, :order], level)[:, 0] for level in range(order)], axis=1)
        if order
        else ints[:, :0]
    )


def _unpack(packed: bytes) -> tuple[int, int, Ints, Ints, Ints]:
    try:
        kind, exponent, order, first_width, width, rows, columns, odd, *sizes = HEADER.unpack_from(packed)
    except struct.error as error:
        raise errors.StoreError(f"packed numbers are cut off after {len(packed)} bytes") from error
    if kind > BITS or exponent > MAX_EXPONENT or order > MAX_ORDER or HEADER.size + sum(sizes) != len(packed):
        raise errors.StoreError("packed numbers have an impossible header")
    ends = np.cumsum([HEADER.size, *sizes]).tolist()
    parts = [packed[start:end] for start, end in itertools.pairwise(ends)]
    ints = _widen(decompress(parts[1]), width, (rows, columns - order))
    heads = _widen(decompress(parts[0]), first_width, (rows, order))
    for level in reversed(range(order)):
        ints = np.cumsum(np.concatenate([heads[:, level : level + 1], ints], axis=1), axis=1)
    nothing = np.empty(0, dtype=np.int64)
    if not odd:
        return kind, exponent, ints, nothing, nothing
    beside = decompress(parts[2])
    odd_at = np.cumsum(np.frombuffer(beside, dtype="<u4", count=odd).astype(np.int64))
    return kind, exponent, ints, odd_at, np.frombuffer(beside, dtype="<i8", offset=4 * odd).astype(np.int64)
