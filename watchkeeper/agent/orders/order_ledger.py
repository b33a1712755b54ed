"""Records work orders on disk, so that no order is run twice, also across restarts.

An order is recorded before its work starts; its receipt is kept until the hub has confirmed it. If the ledger cannot be
read, a new one is created, and orders that were issued before are refused, because they may have been done.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.errors import WireError
from watchkeeper.kit import files, logs, wire
from watchkeeper.model import orders

log = logging.getLogger(__name__)

MAX_ORDERS = 1000
# Long enough for a clock that is set forward and back again.
KEPT_BEYOND_EXPIRY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An order whose work was started; `is_done` False: it has no receipt."""

    nonce: str
    expires_at: datetime
    is_done: bool = False
    # For the receipt after a restart of the agent; empty in a ledger of an older agent.
    kind: str = ""
    service: str = wire.json_key("about", default="")
    boot: str = ""


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """The file's content; `since`: orders that were issued before this time are unknown (None: all are known)."""

    since: datetime | None = None
    entries: Mapping[str, LedgerEntry] = wire.json_key("lines", default_factory=dict)


class OrderLedger:
    """The ledger in a directory of one agent; on an OSError of a write, the order must not be run."""

    def __init__(self, directory: Path, *, now: datetime) -> None:
        self._directory = directory
        self._path = directory / "ledger.json"
        self.content = self._load(now)

    def begin(self, order: orders.Order, *, now: datetime, boot: str = "") -> None:
        service = order.arguments.get("service", "")
        entry = LedgerEntry(order.nonce, order.expires_at, kind=order.kind, service=service, boot=boot)
        self._write({**self._unexpired(now), order.id: entry})

    def finish(self, id: str, receipt: orders.Envelope) -> None:
        """Save the receipt until the hub has confirmed it."""
        files.write_atomically(self._receipt_path(id), wire.dumps(receipt).encode(), mode=0o600)
        self._write({**self.content.entries, id: replace(self.content.entries[id], is_done=True)})

    def find_unfinished(self) -> dict[str, LedgerEntry]:
        """Orders whose work was interrupted by a crash, a power failure, or the restart that they ordered."""
        return {id: entry for id, entry in self.content.entries.items() if not entry.is_done}

    def read_receipt(self, id: str) -> orders.Envelope | None:
        """The receipt of an order; None if it has none or the hub has confirmed it."""
        try:
            return wire.loads(orders.Envelope, self._receipt_path(id).read_bytes())
        except (OSError, WireError):
            return None

    def read_receipts(self) -> dict[str, orders.Envelope]:
        receipts = {id: self.read_receipt(id) for id, entry in self.content.entries.items() if entry.is_done}
        return {id: receipt for id, receipt in receipts.items() if receipt is not None}

    def remove_receipt(self, id: str) -> None:
        # A receipt that cannot be removed is sent again, and the hub recognises it.
        with suppress(OSError):
            self._receipt_path(id).unlink()

    def remove_expired(self, now: datetime) -> None:
        """Remove orders that are too old to be sent again."""
        expired = self.content.entries.keys() - self._unexpired(now).keys()
        for id in expired:
            self.remove_receipt(id)
        if expired:
            self._write(self._unexpired(now))

    def _unexpired(self, now: datetime) -> dict[str, LedgerEntry]:
        oldest = now - KEPT_BEYOND_EXPIRY
        return {id: entry for id, entry in self.content.entries.items() if entry.expires_at >= oldest}

    def _receipt_path(self, id: str) -> Path:
        # The id comes from another machine and must not be used as a file name.
        return self._directory / f"receipt-{hashlib.sha256(id.encode()).hexdigest()[:32]}.json"

    def _load(self, now: datetime) -> LedgerContent:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            return wire.loads(LedgerContent, self._path.read_bytes())
        except FileNotFoundError:
            return LedgerContent()
        except (OSError, WireError) as error:
            log_fields = logs.fields(path=str(self._path), error=str(error)[:200])
            log.error("order ledger unreadable, earlier orders refused", extra=log_fields)
            return LedgerContent(since=now)

    def _write(self, entries: Mapping[str, LedgerEntry]) -> None:
        content = replace(self.content, entries=entries)
        files.write_atomically(self._path, wire.dumps(content).encode(), mode=0o600)
        self.content = content
