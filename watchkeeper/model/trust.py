"""The trust level: how much a hub may do automatically. A module of its own, because settings import it first."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Observe only, suggest plans, ask for approval, or act automatically."""

    OBSERVE = "observe"
    SUGGEST = "suggest"
    ASK = "ask"
    ACT = "act"
