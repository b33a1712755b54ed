"""The trust level: how much a hub may do automatically. A module of its own, because settings import it first."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Watch only, propose plans, wait for approval, act."""

    OBSERVE = "observe"
    SUGGEST = "suggest"
    ASK = "ask"
    ACT = "act"
