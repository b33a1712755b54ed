"""A notice: one message to one receiver about an incident, kept with what became of it.

`notify.notify` decides which notices are due, `notify.delivery` brings them there. The id says everything that
makes a message the same one (incident, receiver, why, and which time), so that a restart finds it already written
and a receiver that knows the id can drop a repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.alerts import Severity


class Occasion(StrEnum):
    """Why somebody is told."""

    OPENED = "opened"
    WORSE = "worse"
    # It turned out to be a whole rack, or all behind one switch.
    WIDER = "wider"
    REPEATED = "repeated"
    ESCALATED = "escalated"
    RESOLVED = "resolved"


class NoticeState(StrEnum):
    """Where a notice is. SENDING that outlives a crash is sent again under its id: told twice beats never told."""

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Notice:
    """`severity` and `place` are the incident's when the notice was made; `answer` is what the receiver said last.

    `batch` names the message that it was first sent in: every further try is the same message again.
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
