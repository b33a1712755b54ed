"""Compress matrices of numbers without loss.

Exporters write decimals, so a matrix of floats is stored as integers and a power of ten; values that do not fit (NaN,
the stale marker, empty slots, −0, long fractions) are exceptions. Integers are stored as differences along the row, in
the narrowest unsigned type, split into byte planes, compressed with zstd; docs/reference/storage.md has the layout.
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

# On GPU telemetry, level 1 is 1 % larger, and level 9 takes three times as long for half a percent.
COMPRESSION_LEVEL = 3
MAX_EXPONENT = 9
# Above one in this many values that are not decimals, the plain bits are smaller than exceptions.
MAX_EXCEPTION_SHARE = 8
SAMPLED_ROWS = 32
MAX_ORDER = 2
# kind, exponent, order, width of first columns, width of other columns, rows, columns, exceptions, size of each part
HEADER = struct.Struct("<BBBBBxxxIIIIII")
# The distance to the cell of the exception before, in 4 bytes, and the bits of the float, in 8.
EXCEPTION_BYTES = 12
INTS, DECIMALS, BITS = range(3)
Bytes = npt.NDArray[np.uint8]


def compress(content: bytes, level: int = COMPRESSION_LEVEL) -> bytes:
    return bytes(zstd.compress(content, level))


def decompress(content: bytes) -> bytes:
    try:
        return bytes(zstd.decompress(content))
    except zstd.ZstdError as error:
        raise errors.StoreError(f"compressed bytes cannot be read: {error}") from error


def pack_ints(matrix: Ints) -> bytes:
    """Pack rows of integers; evenly growing rows, such as times, need almost no bytes."""
    return _pack(INTS, 0, np.ascontiguousarray(matrix, dtype=np.int64))


def unpack_ints(packed: bytes) -> Ints:
    kind, _, ints, _ = _unpack(packed)
    if kind != INTS:
        raise errors.StoreError(f"packed numbers have kind {kind}, expected integers ({INTS})")
    return ints


def pack_floats(matrix: Floats) -> bytes:
    """Pack rows of floats, one series each; `unpack_floats` returns the same bits."""
    matrix = np.ascontiguousarray(matrix, dtype=np.float64)
    bits = matrix.view(np.int64)
    exponent = _choose_exponent(matrix[:: max(1, len(matrix) // SAMPLED_ROWS)])
    ints, fits = _to_decimals(matrix, exponent)
    cells, limit = np.flatnonzero(~fits), matrix.size / MAX_EXCEPTION_SHARE
    if not len(cells):
        return _pack(DECIMALS, exponent, ints)
    # Markers and gaps do not count as numbers: they compress well anyway.
    if len(cells) > limit and np.count_nonzero(~fits & ~np.isnan(matrix)) > limit:
        return _pack(BITS, 0, bits)
    exceptions = np.diff(cells, prepend=0).astype("<u4").tobytes() + bits.reshape(-1)[cells].astype("<i8").tobytes()
    return _pack(DECIMALS, exponent, _fill_exceptions(ints, fits), exceptions)


def unpack_floats(packed: bytes) -> Floats:
    kind, exponent, ints, exceptions = _unpack(packed)
    if kind == BITS:
        return ints.view(np.float64)
    floats: Floats = ints / 10.0**exponent if exponent else ints.astype(np.float64)
    if exceptions:
        count = len(exceptions) // EXCEPTION_BYTES
        cells = np.cumsum(np.frombuffer(exceptions, dtype="<u4", count=count).astype(np.int64))
        floats.view(np.int64).reshape(-1)[cells] = np.frombuffer(exceptions, dtype="<i8", offset=4 * count)
    return floats


def _to_decimals(matrix: Floats, exponent: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The matrix times ten to the exponent as integers, and where dividing them again gives the same bits."""
    scale = 10.0**exponent
    with np.errstate(all="ignore"):
        ints = (np.rint(matrix * scale) if exponent else matrix).astype(np.int64)
        return ints, (ints / scale).view(np.int64) == matrix.view(np.int64)


def _choose_exponent(rows: Floats) -> int:
    """The smallest power of ten that makes the most numbers of sampled rows integers."""
    best_exponent, best_count = 0, -1
    numbers = int(np.count_nonzero(np.isfinite(rows)))
    for exponent in range(MAX_EXPONENT + 1):
        count = int(np.count_nonzero(_to_decimals(rows, exponent)[1]))
        if count > best_count:
            best_exponent, best_count = exponent, count
        if best_count >= numbers:
            break
    return best_exponent


def _fill_exceptions(ints: Ints, fits: npt.NDArray[np.bool_]) -> Ints:
    """Replace each exception by the value before it, so that the difference is zero."""
    columns = np.where(fits, np.arange(ints.shape[1]), 0)
    np.maximum.accumulate(columns, axis=1, out=columns)
    filled = np.take_along_axis(np.where(fits, ints, 0), columns, axis=1)
    return np.asarray(filled)


def _differences(ints: Ints, order: int) -> Ints:
    for _ in range(order):
        ints = np.diff(ints, axis=1)
    return ints


def _choose_order(ints: Ints) -> int:
    """How often to take differences, so that sampled rows need the fewest bits."""
    rows = ints[:: max(1, len(ints) // SAMPLED_ROWS)]
    costs = [
        float(np.log2(1.0 + np.abs(_differences(rows, order).astype(np.float64))).sum())
        for order in range(min(MAX_ORDER, ints.shape[1] - 1) + 1)
    ]
    return int(np.argmin(costs))


def _encode_narrow(ints: Ints) -> tuple[int, bytes]:
    """The width of the narrowest unsigned type for the numbers, and their bytes as byte planes."""
    zigzag = ((ints << 1) ^ (ints >> 63)).view(np.uint64)
    largest = int(zigzag.max()) if zigzag.size else 0
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    narrow_ints = np.ascontiguousarray(zigzag.astype(f"<u{width}"))
    return width, narrow_ints.view(np.uint8).reshape(-1, width).T.tobytes()


def _decode_narrow(planes: bytes, width: int, shape: tuple[int, int]) -> Ints:
    if len(planes) != width * shape[0] * shape[1]:
        raise errors.StoreError(f"packed numbers have {len(planes)} bytes, expected {width * shape[0] * shape[1]}")
    narrow_ints = np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(width, -1).T).view(f"<u{width}")
    zigzag = narrow_ints.reshape(shape).astype(np.uint64)
    ints = (zigzag >> np.uint64(1)).view(np.int64)
    ints ^= -(zigzag & np.uint64(1)).view(np.int64)
    return ints


def _pack(kind: int, exponent: int, ints: Ints, exceptions: bytes = b"") -> bytes:
    rows, columns = ints.shape
    order = _choose_order(ints) if ints.size else 0
    first_width, first_planes = _encode_narrow(_first_values(ints, order))
    width, planes = _encode_narrow(_differences(ints, order))
    parts = [compress(first_planes), compress(planes), compress(exceptions) if exceptions else b""]
    counts = rows, columns, len(exceptions) // EXCEPTION_BYTES
    return HEADER.pack(kind, exponent, order, first_width, width, *counts, *map(len, parts)) + b"".join(parts)


def _first_values(ints: Ints, order: int) -> Ints:
    """The numbers that differences omit: the first of each row, the first of its differences, and so on."""
    if not order:
        return ints[:, :0]
    return np.stack([_differences(ints[:, :order], level)[:, 0] for level in range(order)], axis=1)


def _unpack(packed: bytes) -> tuple[int, int, Ints, bytes]:
    try:
        kind, exponent, order, first_width, width, rows, columns, exception_count, *sizes = HEADER.unpack_from(packed)
    except struct.error as error:
        raise errors.StoreError(f"packed numbers are truncated after {len(packed)} bytes") from error
    if kind > BITS or exponent > MAX_EXPONENT or order > MAX_ORDER or HEADER.size + sum(sizes) != len(packed):
        raise errors.StoreError("packed numbers have an invalid header")
    ends = np.cumsum([HEADER.size, *sizes]).tolist()
    parts = [packed[start:end] for start, end in itertools.pairwise(ends)]
    ints = _decode_narrow(decompress(parts[1]), width, (rows, columns - order))
    first_values = _decode_narrow(decompress(parts[0]), first_width, (rows, order))
    for level in reversed(range(order)):
        ints = np.cumsum(np.concatenate([first_values[:, level : level + 1], ints], axis=1), axis=1)
    exceptions = decompress(parts[2]) if exception_count else b""
    if len(exceptions) != EXCEPTION_BYTES * exception_count:
        raise errors.StoreError(f"packed numbers have {len(exceptions)} bytes for {exception_count} exceptions")
    return kind, exponent, ints, exceptions
