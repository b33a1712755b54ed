"""A few lines that somebody cut out around the trouble: what speaks of a failure there is told, known or not.

In a long log such words are everywhere and mostly harmless; who hands in twenty lines has chosen them.
"""

from __future__ import annotations

import re

from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add

SIGN = "speaks-of-failure"
# Besides logs: what programs print in sentences. In listings such words name fields.
SENTENCES = frozenset({"text", "container_runtime", "kubectl_describe_pod", "mig", "burn_test", "nccl_tests"})
MAX_LINES = 80
FAILS = re.compile(
    r"(?i)\b(?:failed|fatal|abort(?:ed|ing)|cannot|can't|could not|couldn't|unable to|refused|denied|not permitted"
    r"|timed out|crashed|panic)\b"
)
# Lines of a level that is no error's, counts of nothing, and what every kernel says of a driver that is not its own.
HARMLESS = re.compile(
    r"\btaint(?:s|ing) kernel\b|\b(?:INFO|DEBUG|TRACE)\b|\blevel=(?:info|debug|trace)\b|^[ID]\d{4} "
    r"|(?i:(?<![.:])\b(?:0|no|not|never|zero|without)\s+(?:\w+ )?(?:failed|fatal|aborted|crashed)\b|\bfailed\W{1,3}0\b)"
)


def read(listing: Listing, facts: DoctorFacts) -> None:
    """Add the lines of a short text that speak of a failure."""
    if len(listing.lines) > MAX_LINES or not (listing.kind.endswith("_log") or listing.kind in SENTENCES):
        return
    for number, line in enumerate(listing.lines, 1):
        if FAILS.search(line) and not HARMLESS.search(line):
            add(facts, listing, SIGN, line=number, fields={})
