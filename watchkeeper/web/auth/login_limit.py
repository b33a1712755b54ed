"""How often somebody may try to sign in: each failure beyond a few doubles the wait, by address and by name.

`sign_in` asks `begin` before it looks at a password, which counts the try at once, so that many tries at the same
moment are many; and `succeed` afterwards. Nothing here grows beyond its bound: the oldest counts are forgotten.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

MOST_KEYS = 10_000
# A count is forgotten when nothing failed for so long.
FORGOTTEN = timedelta(minutes=15)
# People mistype; several people may share an address behind a NAT.
FREE_BY_NAME, FREE_BY_ADDRESS = 5, 20
# By name the wait stays short: anybody who knows a name could otherwise keep its owner out.
LONGEST_BY_NAME, LONGEST_BY_ADDRESS = timedelta(minutes=1), timedelta(minutes=15)


@dataclass(slots=True)
class AttemptCount:
    """Tries in a row that failed or have not ended, and from when another one is let through."""

    tries: int
    last: datetime
    until: datetime


class LoginLimit:
    def __init__(self) -> None:
        self._by_name: OrderedDict[str, AttemptCount] = OrderedDict()
        self._by_address: OrderedDict[str, AttemptCount] = OrderedDict()

    def start_attempt(self, address: str, name: str, *, now: datetime) -> int:
        """Seconds to wait before the next try, or 0: then this try is counted."""
        network = network_of(address)
        waits = [
            (count.until - now).total_seconds()
            for count in (self._by_name.get(name), self._by_address.get(network))
            # A try in the future was counted by a clock that was put back since: nobody waits for that.
            if count is not None and count.last <= now
        ]
        if (longest := max(waits, default=0.0)) > 0:
            return math.ceil(longest)
        _count(self._by_name, name, now=now, free=FREE_BY_NAME, longest=LONGEST_BY_NAME)
        _count(self._by_address, network, now=now, free=FREE_BY_ADDRESS, longest=LONGEST_BY_ADDRESS)
        return 0

    def record_success(self, address: str, name: str) -> None:
        """Forget the failures of a name, and one try of the address: other names may be tried from there as well."""
        self._by_name.pop(name, None)
        if (count := self._by_address.get(network_of(address))) is not None:
            count.tries -= 1

    def __len__(self) -> int:
        return len(self._by_name) + len(self._by_address)


def network_of(address: str) -> str:
    """An IPv4 address itself, the /64 of an IPv6 address: whoever has one of these has all of them."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _count(counts: OrderedDict[str, AttemptCount], key: str, *, now: datetime, free: int, longest: timedelta) -> None:
    known = counts.pop(key, None)
    tries = 1 if known is None or now - known.last > FORGOTTEN else known.tries + 1
    # Capped before it is a time: two to the power of a long attack is longer than any calendar.
    wait = timedelta() if tries < free else min(longest, timedelta(seconds=2 ** min(tries - free, 20)))
    counts[key] = AttemptCount(tries, now, now + wait)
    while len(counts) > MOST_KEYS:
        counts.popitem(last=False)
