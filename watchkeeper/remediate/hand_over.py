"""Hand a node over to people when its repairs keep failing, with a bundle of evidence.

`hub.repair_loop` passes the active repairs. Once `remediate.hand_over_after` repairs of a node failed for one cause,
the evidence is written next to the journal, and the timeline of the incident names the failed repairs, the last failure
and the bundle. This happens once per incident, also across restarts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from watchkeeper.errors import StoreError
from watchkeeper.kit import evidence_file, logs
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.remediate.evidence import EvidenceSources
from watchkeeper.remediate.registry import TIMELINE_ENTRY
from watchkeeper.store.journal.journal import HUB, Journal

log = logging.getLogger(__name__)

# The key in the timeline entry with the repair after which the node was handed over.
BODY_KEY = "hand_over"
MAX_BUNDLES = 100


def find_failed_repairs(repair: Repair, past: Sequence[Repair]) -> list[Repair]:
    """Return the failed repairs of the same node and cause that changed the machine; empty if `repair` did not."""
    failed = [
        earlier
        for earlier in past
        if earlier.cause == repair.cause and earlier.state is RepairState.FAILED and earlier.has_acted
    ]
    return failed if any(earlier.id == repair.id for earlier in failed) else []


class NodeHandOver:
    """Hands nodes over to people when their repairs keep failing. Not thread-safe."""

    def __init__(self, journal: Journal, sources: EvidenceSources, folder: Path, *, limit: int) -> None:
        self._journal = journal
        self._sources = sources
        self._folder = folder
        self._limit = limit
        self._checked: set[str] = set()

    def hand_over_failed(self, repairs: Iterable[Repair], now: datetime) -> list[str]:
        """Hand over nodes with too many failed repairs; return their incidents."""
        holding = [repair for repair in repairs if repair.keeps_cordon]
        self._checked &= {repair.id for repair in holding}
        handed_over = []
        for repair in holding:
            if repair.id in self._checked:
                continue
            failed = find_failed_repairs(repair, self._journal.repairs_at(repair.node))
            if len(failed) >= self._limit and not self._is_handed_over(repair):
                self._hand_over(repair, failed, now)
                handed_over.append(str(repair.incident))
            self._checked.add(repair.id)
        return handed_over

    def _is_handed_over(self, repair: Repair) -> bool:
        return any(BODY_KEY in entry.body for entry in self._journal.timeline(repair.incident))

    def _hand_over(self, repair: Repair, failed: Sequence[Repair], now: datetime) -> None:
        body: dict[str, Any] = {BODY_KEY: repair.id, "failed": [failure.id for failure in failed]}
        try:
            path, digest = self._write_bundle(repair, now)
            body |= {"bundle": str(path), "sha256": digest}
            evidence = f"The evidence is in {path}"
        except StoreError as error:
            evidence = f"The evidence could not be written: {error}"
        remedy = f"create it again with `watchkeeper bundle --incident {repair.incident} -o FILE.tar.gz`"
        text = (
            f"{len(failed)} repairs of {repair.node.node} failed, the limit is {self._limit}: repair it manually or"
            f" contact its vendor. Last failure: {repair.reason}. {evidence}; {remedy}"
        )
        self._journal.record(TIMELINE_ENTRY, repair.incident, at=now, actor=HUB, body={"text": text, **body})
        fields = logs.fields(incident=repair.incident, node=repair.node.node, failed=len(failed))
        log.error("repairs keep failing, node handed over", extra=fields)

    def _write_bundle(self, repair: Repair, now: datetime) -> tuple[Path, str]:
        bundle = self._sources.bundle_incident(repair.incident, now=now)
        if bundle is None:
            raise StoreError("the incident is not in the journal", where=repair.incident)
        path = self._folder / f"{repair.id}.tar.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            bundles = sorted(self._folder.glob("*.tar.gz"), key=lambda bundle_path: bundle_path.stat().st_mtime)
            for old_bundle in bundles[: max(0, len(bundles) - MAX_BUNDLES + 1)]:
                old_bundle.unlink()
        except OSError as error:
            raise StoreError(f"cannot write bundles: {error.strerror}", where=str(self._folder)) from error
        evidence_file.save(path, bundle)
        return path, hashlib.sha256(bundle).hexdigest()
