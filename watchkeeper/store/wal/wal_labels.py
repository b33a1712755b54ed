"""Decode the label sets of a WAL segment, many at a time.

The WAL has them as JSON. A large fleet has a quarter of a million label sets with mostly repeated pairs: so the text is
split into the texts of pairs, and each distinct text becomes one pair that all its series share. The label sets of a
GPU differ only in the metric name: the text before and after the name is decoded once for all of them. `wal_records`
uses this module.
"""

from __future__ import annotations

import numpy as np
import orjson

from watchkeeper.model import labels as label_sets
from watchkeeper.store.series import Pairs

Pair = tuple[str, str]
# A series is `1,[["gpu","0"],["node","n1`, without the removed end.
BETWEEN_SERIES, BEFORE_PAIRS, BETWEEN_PAIRS, INSIDE_PAIR = '"]]],[', ",[", '"],["', '","'
NAME = f"{label_sets.METRIC_NAME}{INSIDE_PAIR}"
NAMED = f'["{NAME}'
OPEN, CLOSE, QUOTE, COMMA = b'[]",'
# The series of a GPU are close together, so dropped texts are rarely needed again.
MAX_CACHED_TEXTS = 1 << 12


class SharedPairs(dict[str, Pair]):
    """Pairs by their text; each is created at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self._pair_by_pair: dict[Pair, Pair] = {}
        self.pair_lists = _PairLists(self)

    def __missing__(self, text: str) -> Pair:
        name, _, value = text.partition(INSIDE_PAIR)
        pair = self[text] = self.share((name, value))
        return pair

    def share(self, pair: Pair) -> Pair:
        return self._pair_by_pair.setdefault(pair, pair)


class _PairLists(dict[str, Pairs]):
    """Lists of pairs by their text."""

    def __init__(self, shared: SharedPairs) -> None:
        super().__init__()
        self._pair = shared.__getitem__

    def __missing__(self, text: str) -> Pairs:
        if len(self) >= MAX_CACHED_TEXTS:
            self.clear()
        pairs = self[text] = tuple(map(self._pair, text.split(BETWEEN_PAIRS))) if text else ()
        return pairs


def decode(content: bytes, shared: SharedPairs) -> dict[int, Pairs]:
    """Label sets by id, as `wal` writes them; ValueError if the text is invalid."""
    if not _has_plain_separators(content):
        return {
            id: tuple([shared.share((name, value)) for name, value in pairs]) for id, pairs in orjson.loads(content)
        }
    label_sets_by_id, pair_lists = {}, shared.pair_lists
    for series in content.decode().removeprefix("[[").removesuffix('"]]]]').split(BETWEEN_SERIES):
        id, _, pairs = series.partition(BEFORE_PAIRS)
        before, name_mark, after = pairs.partition(NAMED)
        if name_mark:
            name, _, after = after.partition(BETWEEN_PAIRS)
            label_sets_by_id[int(id)] = (*pair_lists[before[2:-3]], shared[NAME + name], *pair_lists[after])
        else:
            label_sets_by_id[int(id)] = pair_lists[pairs[2:]]
    return label_sets_by_id


def _has_plain_separators(content: bytes) -> bool:
    """Whether every separator in the text is JSON syntax, and none is part of a name or a value.

    That is the case without escapes, without texts that begin with a bracket (their opening quote would look like a
    closing one), and without series that have no labels.
    """
    characters = np.frombuffer(content, dtype=np.uint8)
    is_open, is_close = characters == OPEN, characters == CLOSE
    is_quote_at_start = (characters[1:-1] == QUOTE) & is_close[2:] & (is_open[:-2] | (characters[:-2] == COMMA))
    return not (b"\\" in content or is_quote_at_start.any() or (is_open[:-1] & is_close[1:]).any())
