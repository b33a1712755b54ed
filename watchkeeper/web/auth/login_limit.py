"""Limit login attempts: after a few failures, each further failure doubles the wait, by address and by name.

An attempt is counted before its password is checked, so that concurrent attempts are counted too. The number of counts
is limited: the oldest are dropped.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_KEYS = 10_000
# A count is dropped after this time without a failure.
FORGET_AFTER = timedelta(minutes=15)
# Users mistype, and several users can share an address behind a NAT.
FREE_ATTEMPTS_BY_NAME, FREE_ATTEMPTS_BY_ADDRESS = 5, 20
# By name the wait stays short: otherwise anyone who knows a name could lock its owner out.
MAX_WAIT_BY_NAME, MAX_WAIT_BY_ADDRESS = timedelta(minutes=1), timedelta(minutes=15)


@dataclass(slots=True)
class AttemptCount:
    """Consecutive attempts that failed or have not ended; the next one is allowed at `blocked_until`."""

    attempts: int
    last_at: datetime
    blocked_until: datetime


class LoginLimit:
    def __init__(self) -> None:
        self._by_name: OrderedDict[str, AttemptCount] = OrderedDict()
        self._by_address: OrderedDict[str, AttemptCount] = OrderedDict()

    def start_attempt(self, address: str, name: str, *, now: datetime) -> int:
        """Seconds to wait before the next attempt, or 0 if this attempt is allowed; then it is counted."""
        network = client_network(address)
        waits = [
            (count.blocked_until - now).total_seconds()
            for count in (self._by_name.get(name), self._by_address.get(network))
            # An attempt in the future was counted before the clock was set back: it is ignored.
            if count is not None and count.last_at <= now
        ]
        if (wait_seconds := max(waits, default=0.0)) > 0:
            return math.ceil(wait_seconds)
        _count_attempt(self._by_name, name, now=now, free_attempts=FREE_ATTEMPTS_BY_NAME, max_wait=MAX_WAIT_BY_NAME)
        _count_attempt(
            self._by_address, network, now=now, free_attempts=FREE_ATTEMPTS_BY_ADDRESS, max_wait=MAX_WAIT_BY_ADDRESS
        )
        return 0

    def record_success(self, address: str, name: str) -> None:
        """Clear the count of the name, and only one attempt of the address, which may try other names as well."""
        self._by_name.pop(name, None)
        if (count := self._by_address.get(client_network(address))) is not None:
            count.attempts -= 1

    def __len__(self) -> int:
        return len(self._by_name) + len(self._by_address)


def client_network(address: str) -> str:
    """An IPv4 address itself, or the /64 of an IPv6 address, because one client can use all of a /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _count_attempt(
    counts: OrderedDict[str, AttemptCount], key: str, *, now: datetime, free_attempts: int, max_wait: timedelta
) -> None:
    previous = counts.pop(key, None)
    attempts = 1 if previous is None or now - previous.last_at > FORGET_AFTER else previous.attempts + 1
    # Limited, because a long attack would overflow timedelta.
    exponent = min(attempts - free_attempts, 20)
    wait = timedelta() if exponent < 0 else min(max_wait, timedelta(seconds=2**exponent))
    counts[key] = AttemptCount(attempts, now, now + wait)
    while len(counts) > MAX_KEYS:
        counts.popitem(last=False)
