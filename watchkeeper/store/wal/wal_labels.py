"""The label sets that a segment of the log defines, read many at once.

The log has them as JSON. A large fleet has a quarter of a million, made of pairs that nearly all occur again and again:
so the text is cut into the texts of pairs, and each of these becomes the one pair that all its series share. The
metrics of a GPU differ in their name only: what stands before and behind it is looked at once for all of them.
`wal_records` reads with it.
"""

from __future__ import annotations

import numpy as np
import orjson

from watchkeeper.model import labels as label_sets
from watchkeeper.store.series import Pairs

Pair = tuple[str, str]
# A series is `1,[["gpu","0"],["node","n1`, without the end that is cut off.
BETWEEN_SERIES, BEFORE_PAIRS, BETWEEN_PAIRS, INSIDE_PAIR = '"]]],[', ",[", '"],["', '","'
NAME = f"{label_sets.METRIC_NAME}{INSIDE_PAIR}"
NAMED = f'["{NAME}'
OPEN, CLOSE, QUOTE, COMMA = b'[]",'
# The series of a GPU stand close together: what is forgotten is hardly ever asked for again.
REMEMBERED_TEXTS = 1 << 12


class SharedPairs(dict[str, Pair]):
    """Pairs by their text, each made when it is first met."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[Pair, Pair] = {}
        self.lists = _Lists(self)

    def __missing__(self, text: str) -> Pair:
        name, _, value = text.partition(INSIDE_PAIR)
        pair = self[text] = self.share((name, value))
        return pair

    def share(self, pair: Pair) -> Pair:
        return self._made.setdefault(pair, pair)


class _Lists(dict[str, Pairs]):
    """Several pairs by their text."""

    def __init__(self, shared: SharedPairs) -> None:
        super().__init__()
        self._pair = shared.__getitem__

    def __missing__(self, text: str) -> Pairs:
        if len(self) >= REMEMBERED_TEXTS:
            self.clear()
        pairs = self[text] = tuple(map(self._pair, text.split(BETWEEN_PAIRS))) if text else ()
        return pairs


def read(content: bytes, shared: SharedPairs) -> dict[int, Pairs]:
    """Ids and their label sets, as `wal` writes them; ValueError if it did not."""
    if not _has_plain_marks(content):
        return {
            id: tuple([shared.share((name, value)) for name, value in pairs]) for id, pairs in orjson.loads(content)
        }
    found, lists = {}, shared.lists
    for series in content.decode().removeprefix("[[").removesuffix('"]]]]').split(BETWEEN_SERIES):
        id, _, pairs = series.partition(BEFORE_PAIRS)
        before, named, behind = pairs.partition(NAMED)
        if named:
            name, _, behind = behind.partition(BETWEEN_PAIRS)
            found[int(id)] = (*lists[before[2:-3]], shared[NAME + name], *lists[behind])
        else:
            found[int(id)] = lists[pairs[2:]]
    return found


def _has_plain_marks(content: bytes) -> bool:
    """Whether every mark that the text is cut at is JSON's own, and none is part of a name or a value.

    So it is without an escape, a text that begins with a bracket (an opening quote that reads as a closing one), and a
    series without labels.
    """
    marks = np.frombuffer(content, dtype=np.uint8)
    is_open, is_close = marks == OPEN, marks == CLOSE
    begins = (marks[1:-1] == QUOTE) & is_close[2:] & (is_open[:-2] | (marks[:-2] == COMMA))
    return not (b"\\" in content or begins.any() or (is_open[:-1] & is_close[1:]).any())
