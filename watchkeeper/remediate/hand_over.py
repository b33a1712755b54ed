"""When machines have done what they can: a node whose repairs keep failing is for people, with its evidence at hand.

`repair_loop` shows every repair that failed and still holds its node. Once as many have failed there for one cause as
the settings allow, the evidence is written beside the journal and the incident says so: which repairs failed, why the
last one did, and where the bundle lies. Once for each incident, whatever restarts in between.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.errors import StoreError
from watchkeeper.kit import evidence_file, logs
from watchkeeper.model import fleet
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.remediate.evidence import EvidenceSources
from watchkeeper.remediate.register import STORY
from watchkeeper.store.journal import chain
from watchkeeper.store.journal.journal import HUB

log = logging.getLogger(__name__)

# In the body of the timeline's entry: the repair after which the node was handed over.
MARK = "hand_over"
MOST_BUNDLES = 100


class HandOverJournal(Protocol):
    """What a hand-over needs of a journal."""

    def record(self, kind: str, subject: str, *, at: datetime, actor: str, body: Mapping[str, Any]) -> Any: ...

    def repairs_at(self, node: fleet.Place, *, limit: int = 20) -> list[Repair]: ...

    def timeline(self, incident_id: str, limit: int = 1000) -> list[chain.JournalEntry]: ...


def failed_before(repair: Repair, past: Sequence[Repair]) -> list[Repair]:
    """This repair and those before it that did something to the node about the same cause, in vain."""
    found = [one for one in past if one.cause == repair.cause and one.state is RepairState.FAILED and one.has_acted]
    return found if any(one.id == repair.id for one in found) else []


class HandOver:
    """One thread at a time."""

    def __init__(self, shelf: HandOverJournal, sources: EvidenceSources, folder: Path, *, limit: int) -> None:
        self._shelf = shelf
        self._sources = sources
        self._folder = folder
        self._limit = limit
        self._seen: set[str] = set()

    def hand_over_failed(self, repairs: Iterable[Repair], now: datetime) -> list[str]:
        """The incidents that were handed over by this look."""
        held = [one for one in repairs if one.keeps_cordon]
        self._seen &= {one.id for one in held}
        done = []
        for repair in held:
            if repair.id in self._seen:
                continue
            failed = failed_before(repair, self._shelf.repairs_at(repair.node))
            if len(failed) >= self._limit and not self._was_told(repair):
                self._hand_over(repair, failed, now)
                done.append(str(repair.incident))
            self._seen.add(repair.id)
        return done

    def _was_told(self, repair: Repair) -> bool:
        return any(MARK in entry.body for entry in self._shelf.timeline(repair.incident))

    def _hand_over(self, repair: Repair, failed: Sequence[Repair], now: datetime) -> None:
        body: dict[str, Any] = {MARK: repair.id, "failed": [one.id for one in failed]}
        try:
            path, digest = self._keep(repair, now)
            body |= {"bundle": str(path), "sha256": digest}
            where = f"The evidence is in {path}"
        except StoreError as error:
            where = f"No evidence could be kept: {error}"
        remedy = f"make it again with `watchkeeper bundle --incident {repair.incident} -o FILE.tar.gz`"
        text = (
            f"{len(failed)} repairs of {repair.node.node} have failed, the limit is {self._limit}: it is for people"
            f" now, perhaps for its vendor. The last one: {repair.reason}. {where}; {remedy}"
        )
        self._shelf.record(STORY, repair.incident, at=now, actor=HUB, body={"text": text, **body})
        log.error("A node is handed over", extra=logs.fields(incident=repair.incident, node=repair.node.node))

    def _keep(self, repair: Repair, now: datetime) -> tuple[Path, str]:
        made = self._sources.bundle_incident(repair.incident, now=now)
        if made is None:
            raise StoreError("the journal no longer has the incident", where=repair.incident)
        path = self._folder / f"{repair.id}.tar.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = sorted(self._folder.glob("*.tar.gz"), key=lambda one: one.stat().st_mtime)
            for old in kept[: max(0, len(kept) - MOST_BUNDLES + 1)]:
                old.unlink()
        except OSError as error:
            raise StoreError(f"no room for bundles: {error.strerror}", where=str(self._folder)) from error
        evidence_file.save(path, made)
        return path, hashlib.sha256(made).hexdigest()
