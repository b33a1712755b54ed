"""The cause that each kind of event stands for, from packs/event_causes.csv.

`incidents.signals` and `diagnose.evidence` both use it, so that incident and diagnosis agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from watchkeeper.catalogue import causes, pack
from watchkeeper.model import events

FILE = "event_causes.csv"


def cause_of(kind: events.EventKind) -> str | None:
    """The cause that an event of this kind stands for; None if it is not a fault or carries its own cause."""
    return _by_kind().get(kind)


@cache
def _by_kind() -> Mapping[events.EventKind, str]:
    return dict(pack.load(FILE, _row))


def _row(cells: Mapping[str, str]) -> tuple[events.EventKind, str]:
    pack.required(cells["why"])
    cause_ids = frozenset(row.cause for row in causes.all_causes())
    return events.EventKind(cells["kind"]), pack.choice(cells["cause"], cause_ids)
