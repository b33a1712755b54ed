"""A silence: no notifications for matching incidents in a time range, with author and reason.

Matchers have Alertmanager's shape and meaning, so a silence can be copied to it unchanged. A silenced incident is still
shown and handled; only notifications stop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

# node=~"gpu-r01-.*", severity!=info
MATCHER = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; `name` and `value` as in Alertmanager's API."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True

    def __str__(self) -> str:
        sign = {(False, True): "=", (False, False): "!=", (True, True): "=~", (True, False): "!~"}
        return f'{self.name}{sign[self.is_regex, self.is_equal]}"{self.value}"'


def parse_matcher(text: str) -> Matcher:
    """`node=gpu-r01-01`, `cause!="power_cap"`, `team=~"research|vision"`; ValueError if it is invalid."""
    if (match := MATCHER.fullmatch(text.strip())) is None:
        raise ValueError(f'`{text[:80]}` is not a matcher such as node="gpu-r01-01" or team=~"research|vision"')
    name, sign, value = match.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return Matcher(name, value, is_regex=sign in ("=~", "!~"), is_equal=sign in ("=", "=~"))


# Where a silence is stored: in this hub, or in the Alertmanager that routes for it.
OURS, ALERTMANAGER = "watchkeeper", "alertmanager"


@dataclass(frozen=True, slots=True)
class Silence:
    """`ended_by` is who ended it early, `keeper` where it is stored."""

    id: str
    matchers: tuple[Matcher, ...]
    author: str
    reason: str
    starts_at: datetime
    ends_at: datetime
    is_maintenance: bool = False
    ended_by: str | None = None
    keeper: str = OURS

    def __post_init__(self) -> None:
        # Alertmanager has its own rules and accepts `severity!=""`.
        if self.keeper == OURS and not any(matcher.is_equal and matcher.value for matcher in self.matchers):
            raise ValueError('a silence needs a matcher that selects something, such as node="gpu-r01-01"')
        if not self.author or not self.reason:
            raise ValueError("a silence needs an author and a reason")
        if self.ends_at <= self.starts_at:
            raise ValueError("the end of a silence must be after its start")

    def is_active(self, now: datetime) -> bool:
        return self.starts_at <= now < self.ends_at
