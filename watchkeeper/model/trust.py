"""The trust ladder: how much a hub may do by itself; settings need it before anything else."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The trust ladder: watch only, propose, wait for a person's yes, act."""

    OBSERVE = "observe"
    SUGGEST = "suggest"
    ASK = "ask"
    ACT = "act"
