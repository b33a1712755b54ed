"""Label sets as in Prometheus: names to values, where an empty value means absent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, overload

from watchkeeper.kit.own_metrics import escape

METRIC_NAME = "__name__"
T = TypeVar("T")


class Labels(Mapping[str, str]):
    """An immutable label set, kept sorted by name so that equal sets compare and hash alike."""

    __slots__ = ("_hash", "pairs")

    def __init__(self, labels: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        # A fleet has a million label sets, most from a plain dictionary without empty values.
        value_by_name = (
            labels if type(labels) is dict else dict(labels.items() if isinstance(labels, Mapping) else labels)
        )
        if "" in value_by_name.values():
            value_by_name = {name: value for name, value in value_by_name.items() if value}
        self.pairs: tuple[tuple[str, str], ...] = tuple(sorted(value_by_name.items()))
        self._hash = hash(self.pairs)

    @classmethod
    def with_metric_name(cls, name: str, others: tuple[tuple[str, str], ...]) -> Labels:
        """Add the metric name to pairs that are sorted and not empty: faster than sorting all."""
        position = bisect_left(others, (METRIC_NAME,))
        labels = cls.__new__(cls)
        labels.pairs = (*others[:position], (METRIC_NAME, name), *others[position:])
        labels._hash = hash(labels.pairs)
        return labels

    @classmethod
    def from_sorted_pairs(cls, pairs: tuple[tuple[str, str], ...]) -> Labels:
        """Rebuild a label set from its pairs, which are sorted, unique and not empty; nothing is checked."""
        labels = cls.__new__(cls)
        labels.pairs = pairs
        labels._hash = hash(pairs)
        return labels

    @property
    def name(self) -> str:
        """The metric name, or an empty string."""
        return self.get(METRIC_NAME, "")

    @property
    def pairs_without_name(self) -> tuple[tuple[str, str], ...]:
        return tuple([pair for pair in self.pairs if pair[0] != METRIC_NAME])

    def only(self, names: Iterable[str]) -> Labels:
        kept_names = frozenset(names)
        return Labels(pair for pair in self.pairs if pair[0] in kept_names)

    def without(self, *names: str) -> Labels:
        return Labels(pair for pair in self.pairs if pair[0] not in names)

    def with_labels(self, /, **labels: str) -> Labels:
        """The same set with these labels set; an empty value removes a label."""
        return Labels(dict(self.pairs) | labels)

    def __getitem__(self, name: str) -> str:
        for label, value in self.pairs:
            if label == name:
                return value
        raise KeyError(name)

    @overload
    def get(self, name: str, default: None = None, /) -> str | None: ...

    @overload
    def get(self, name: str, default: str | T, /) -> str | T: ...

    def get(self, name: str, default: object = None, /) -> object:
        # Mapping.get raises and catches an exception for each absent label, which is slow.
        for label, value in self.pairs:
            if label == name:
                return value
        return default

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self.pairs == other.pairs if isinstance(other, Labels) else NotImplemented

    def __lt__(self, other: Labels) -> bool:
        return self.pairs < other.pairs

    def __repr__(self) -> str:
        return f"Labels({self})"

    def __str__(self) -> str:
        """As PromQL writes a series: `up{node="n1"}`, or `{"gpu.temp", node="n1"}` for a name that needs quotes."""
        label_texts = [f'{quote_name(name)}="{escape(value)}"' for name, value in self.pairs if name != METRIC_NAME]
        name = quote_name(self.name) if self.name else ""
        if name.startswith('"'):
            return f"{{{', '.join([name, *label_texts])}}}"
        return f"{name}{{{', '.join(label_texts)}}}" if label_texts or not name else name


def quote_name(name: str) -> str:
    """A name in PromQL: in quotes unless it has only letters, digits, _ and :."""
    is_word = name.isascii() and name.replace(":", "_").isidentifier()
    return name if is_word else f'"{escape(name)}"'
