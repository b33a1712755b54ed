"""What an agent remembers of work orders, so that none is done twice, whatever restarts in between.

An order is written down before the work on it begins; its receipt is kept until the hub has it. An order is forgotten
only when nobody could send it again: long after it expired. A ledger that cannot be read is begun anew, and then what
was issued before is refused, because nobody knows whether it was done.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.errors import WireError
from watchkeeper.kit import files, logs, wire
from watchkeeper.model import orders

log = logging.getLogger(__name__)

MAX_ORDERS = 1000
# A clock that was set forward and back again must not make us forget.
KEPT_BEYOND_EXPIRY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One order that was begun; `is_done` False: its receipt was never written."""

    nonce: str
    expires_at: datetime
    is_done: bool = False
    # What an agent that starts again needs to say what became of it; empty in a ledger of an older agent.
    kind: str = ""
    about: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """The whole memory. `since`: what was issued before this time is unknown; None: the memory is complete."""

    since: datetime | None = None
    lines: Mapping[str, LedgerEntry] = field(default_factory=dict)


class OrderLedger:
    """One directory; one agent uses it. OSError where something cannot be written: then nothing may be done."""

    def __init__(self, directory: Path, *, now: datetime) -> None:
        self._directory = directory
        self._path = directory / "ledger.json"
        self._page = self._load(now)

    @property
    def since(self) -> datetime | None:
        return self._page.since

    @property
    def count(self) -> int:
        return len(self._page.lines)

    def entry(self, id: str) -> LedgerEntry | None:
        return self._page.lines.get(id)

    def has_nonce(self, nonce: str) -> bool:
        return any(line.nonce == nonce for line in self._page.lines.values())

    def begin(self, order: orders.Order, *, now: datetime, boot: str = "") -> None:
        about = order.arguments.get("service", "")
        line = LedgerEntry(order.nonce, order.expires_at, kind=order.kind, about=about, boot=boot)
        self._write({**self._recent(now), order.id: line})

    def finish(self, id: str, receipt: orders.Envelope) -> None:
        """Keep the receipt until the hub has it."""
        files.write_atomically(self._receipt(id), wire.dumps(receipt).encode(), mode=0o600)
        self._write({**self._page.lines, id: replace(self._page.lines[id], is_done=True)})

    def unfinished(self) -> dict[str, LedgerEntry]:
        """Orders whose work was cut off, by a crash, a power failure, or the restart that they asked for."""
        return {id: line for id, line in self._page.lines.items() if not line.is_done}

    def receipt(self, id: str) -> orders.Envelope | None:
        """The receipt of an order, while the hub has not confirmed it."""
        try:
            return wire.loads(orders.Envelope, self._receipt(id).read_bytes())
        except (OSError, WireError):
            return None

    def receipts(self) -> dict[str, orders.Envelope]:
        """Every receipt that the hub has not confirmed."""
        kept = {id: self.receipt(id) for id, line in self._page.lines.items() if line.is_done}
        return {id: receipt for id, receipt in kept.items() if receipt is not None}

    def delivered(self, id: str) -> None:
        # One that cannot be removed is sent again, which the hub recognises.
        with suppress(OSError):
            self._receipt(id).unlink()

    def forget_old(self, now: datetime) -> None:
        """Make room; what is forgotten was too old to be sent again."""
        gone = self._page.lines.keys() - self._recent(now).keys()
        for id in gone:
            self.delivered(id)
        if gone:
            self._write(self._recent(now))

    def _recent(self, now: datetime) -> dict[str, LedgerEntry]:
        return {id: line for id, line in self._page.lines.items() if now <= line.expires_at + KEPT_BEYOND_EXPIRY}

    def _receipt(self, id: str) -> Path:
        # An id is another machine's text and may not name a file.
        return self._directory / f"receipt-{hashlib.sha256(id.encode()).hexdigest()[:32]}.json"

    def _load(self, now: datetime) -> LedgerContent:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            return wire.loads(LedgerContent, self._path.read_bytes())
        except FileNotFoundError:
            return LedgerContent()
        except (OSError, WireError) as error:
            log.error(
                "What was ordered before is not known, and is refused",
                extra=logs.fields(path=str(self._path), error=str(error)[:200]),
            )
            return LedgerContent(since=now)

    def _write(self, lines: Mapping[str, LedgerEntry]) -> None:
        page = replace(self._page, lines=lines)
        files.write_atomically(self._path, wire.dumps(page).encode(), mode=0o600)
        self._page = page
