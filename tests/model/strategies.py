"""Hypothesis strategies for the nouns: any value that a type allows, built from its own hints."""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime
from functools import cache

from hypothesis import strategies as st

from watchkeeper.model import events, fleet, incidents, labels

# Surrogates cannot be written as UTF-8; the wire refuses them.
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
times = st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
label_sets = st.dictionaries(words, words | st.just(""), max_size=5).map(labels.Labels)


@st.composite
def places(draw: st.DrawFn) -> fleet.Place:
    """Any legal place; few names, so that places often meet."""
    name = st.sampled_from(["a", "b", "n/1=é %"])
    cluster = draw(name)
    match draw(st.sampled_from(["cluster", "domain", "node", "gpu", "slice", "port"])):
        case "cluster":
            return fleet.Place(cluster)
        case "domain":
            return fleet.Place(cluster, domain=f"rack={draw(name)}")
        case "node":
            return fleet.Place(cluster, node=draw(name))
        case "gpu":
            return fleet.Place(cluster, node=draw(name), gpu=draw(name))
        case "slice":
            return fleet.Place(cluster, node=draw(name), gpu=draw(name), slice=draw(name))
        case _:
            return fleet.Place(cluster, node=draw(name), port=draw(name))


@cache
def any_of(kind: type) -> st.SearchStrategy[typing.Any]:
    """Values of one of our dataclasses with every field free, as far as the class allows."""
    if kind is fleet.Place:
        return places()
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: _from_hint(hints[field.name]) for field in dataclasses.fields(kind)})


def _from_hint(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    hint = getattr(hint, "__supertype__", hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    leaves: dict[typing.Any, st.SearchStrategy[typing.Any]] = {
        str: words,
        int: st.integers(),
        float: st.floats(0, 1),
        datetime: times,
        labels.Labels: label_sets,
        type(None): st.none(),
    }
    if hint in leaves:
        return leaves[hint]
    if dataclasses.is_dataclass(hint):
        return any_of(typing.cast(type, hint))
    if origin is tuple and args[1:] == (Ellipsis,):
        return st.lists(_from_hint(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_from_hint, args))
    if origin is frozenset:
        return st.frozensets(_from_hint(args[0]), max_size=3)
    if origin is not None and issubclass(origin, typing.Mapping):
        return st.dictionaries(words, words, max_size=3)
    return st.one_of(*map(_from_hint, args)) if args else st.sampled_from(list(hint))


few_events = st.lists(
    st.builds(
        events.Event,
        id=st.sampled_from("abcdefgh"),
        kind=st.sampled_from([events.EventKind.XID, events.EventKind.GPU_RESET, events.EventKind.NODE_BOOT]),
        code=st.sampled_from([None, 48, 79]),
        place=places(),
        at=st.integers(0, 600).map(lambda second: datetime(2026, 1, 31, 9, second // 60, second % 60, tzinfo=UTC)),
        text=st.just(""),
    ),
    max_size=8,
    unique_by=lambda event: event.id,
)
clear_rules = st.builds(
    events.ClearRule,
    quiet_seconds=st.none() | st.sampled_from([1.0, 60.0, 300.0]),
    cleared_by=st.frozensets(st.sampled_from([events.EventKind.GPU_RESET, events.EventKind.NODE_BOOT])),
)
incident_values = any_of(incidents.Incident)
