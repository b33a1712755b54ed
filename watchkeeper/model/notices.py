"""A notice: one message to one receiver about an incident, stored with its delivery state.

`notify.decisions` decides which notices are due, `notify.delivery` sends them. The id contains everything that
identifies a message (incident, receiver, occasion, repetition), so a restart finds a notice that is already stored,
and a receiver that knows the id can drop a duplicate.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.alerts import Severity


class Occasion(StrEnum):
    """Why a notification is sent."""

    OPENED = "opened"
    WORSE = "worse"
    # The incident now covers a whole rack, or all nodes behind one switch.
    WIDER = "wider"
    REPEATED = "repeated"
    ESCALATED = "escalated"
    RESOLVED = "resolved"


class NoticeState(StrEnum):
    """Delivery state. A notice in SENDING after a crash is sent again under its id: twice is better than never."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Notice:
    """`severity` and `place` are the incident's when the notice was made; `answer` is the receiver's last reply.

    `batch` is the message that first contained it; each retry sends the same message again.
    """

    id: str
    incident: str
    receiver: str
    occasion: Occasion
    severity: Severity
    state: NoticeState
    made_at: datetime
    due_at: datetime
    tries: int = 0
    answer: str = ""
    sent_at: datetime | None = None
    place: str = ""
    batch: str = ""

    @property
    def is_pending(self) -> bool:
        return self.state in (NoticeState.WAITING, NoticeState.SENDING)
