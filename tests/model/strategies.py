"""Hypothesis strategies for the model: any value that a type allows, built from its type hints."""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime, timedelta
from functools import cache

from hypothesis import strategies as st

from watchkeeper.model import events, fleet, incidents, labels, orders, silences, workloads

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


def attributions() -> st.SearchStrategy[workloads.Attribution]:
    """Holdings or a reason, never both."""
    holdings = st.lists(any_of(workloads.Holding), min_size=1, max_size=3).map(tuple)
    held = st.builds(workloads.Attribution, holdings=holdings, detail=words)
    return held | st.builds(
        workloads.Attribution, reason=st.sampled_from(list(workloads.UnattributedReason)), detail=words
    )


def silences_made() -> st.SearchStrategy[silences.Silence]:
    """With an end after its beginning, and a matcher that says something."""
    telling = st.builds(silences.Matcher, name=words, value=words, is_regex=st.booleans())
    return st.builds(
        silences.Silence,
        id=words,
        matchers=st.lists(telling, min_size=1, max_size=3).map(tuple),
        author=words,
        reason=words,
        starts_at=st.just(datetime(1970, 1, 1, tzinfo=UTC)),
        ends_at=times,
        is_maintenance=st.booleans(),
        ended_by=st.none() | words,
    )


def orders_given() -> st.SearchStrategy[orders.Order]:
    """With names that can be seen, and a life that ends."""
    names = st.text("abcé-0", min_size=1, max_size=12)
    start = datetime(2026, 1, 31, 9, tzinfo=UTC)
    return st.builds(
        orders.Order,
        id=st.text("WO-1/", min_size=1, max_size=12).map(orders.OrderId),
        cluster=names,
        node=names,
        kind=words,
        issued_at=st.just(start),
        expires_at=st.integers(1, 86_400).map(lambda seconds: start + timedelta(seconds=seconds)),
        nonce=words,
        arguments=st.dictionaries(words, words, max_size=3),
    )


CAREFUL: dict[type, typing.Callable[[], st.SearchStrategy[typing.Any]]] = {
    workloads.Attribution: attributions,
    silences.Silence: silences_made,
    orders.Order: orders_given,
}


@cache
def any_of(kind: type) -> st.SearchStrategy[typing.Any]:
    """Values of one of our dataclasses with every field free, as far as the class allows."""
    if kind is fleet.Place:
        return places()
    if kind in CAREFUL:
        return CAREFUL[kind]()
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: _from_hint(hints[field.name]) for field in dataclasses.fields(kind)})


def _from_hint(hint: typing.Any) -> st.SearchStrategy[typing.Any]:
    hint = getattr(hint, "__supertype__", hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    leaves: dict[typing.Any, st.SearchStrategy[typing.Any]] = {
        str: words,
        bool: st.booleans(),
        int: st.integers(),
        float: st.floats(0, 1),
        datetime: times,
        labels.Labels: label_sets,
        type(None): st.none(),
        typing.Any: words,
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
        return st.dictionaries(_from_hint(args[0]), _from_hint(args[1]), max_size=3)
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
