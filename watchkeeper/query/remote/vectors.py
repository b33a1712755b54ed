"""A fast reader for instant vectors of a server, with a cache of label sets.

A rule gets the same hundred thousand series at each evaluation. The cache finds their labels by the bytes that the
server sends, so that only the values are parsed: a tenth of the time of a JSON parser. `prometheus` tries this reader
first; `responses` reads every response with another layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from watchkeeper.model.labels import Labels
from watchkeeper.query.remote.bounded_cache import BoundedCache, default_limit_bytes

# {"metric":{"__name__":"up","instance":"n1"},"value":[1730000000.123,"1"]},
ROW = b'{"metric":'
VALUE = b',"value":['
# In a string a quotation mark follows a backslash, so neither END nor NEXT can be part of a label.
END = b"]}"
NEXT = b'"]},' + ROW
# The memory of a cached label set besides its bytes: a dictionary entry, the Labels and its pairs.
ENTRY_OVERHEAD_BYTES = 1500


class VectorRows(NamedTuple):
    """Series and their values, and the rest of the response."""

    labels: list[Labels]
    values: list[float]
    envelope: Mapping[str, Any]


def _parse_labels(raw: bytes) -> Labels:
    return Labels(orjson.loads(raw))


_label_cache: BoundedCache[bytes, Labels] = BoundedCache(
    _parse_labels, lambda raw, _: len(raw) + ENTRY_OVERHEAD_BYTES, limit_bytes=default_limit_bytes()
)


def read(body: bytes) -> VectorRows | None:
    """The rows of a successful response; None if it has no rows, or a row without a number."""
    head, *pieces = body.split(ROW)
    if not pieces:
        return None
    labels, values, tail = [], [], b""
    try:
        for piece in pieces:
            raw, _, rest = piece.rpartition(VALUE)
            timestamp, text, tail = rest.split(b'"', 2)
            if not timestamp.endswith(b",") or not tail.startswith(END):
                return None
            labels.append(_label_cache.get(raw))
            values.append(float(text))
        envelope = orjson.loads(head + tail[len(END) :])
    except ValueError:
        return None
    is_complete = body.count(NEXT) == len(pieces) - 1 and _is_empty_vector(envelope)
    return VectorRows(labels, values, envelope) if is_complete else None


def _is_empty_vector(envelope: Any) -> bool:
    """Whether a response without its rows is a successful, empty instant vector."""
    if not isinstance(envelope, dict) or envelope.get("status") != "success":
        return False
    return envelope.get("data") == {"resultType": "vector", "result": []}
