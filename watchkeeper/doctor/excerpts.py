"""Find lines about a failure in a short excerpt, even if no sign matches them.

In a long log words of failure are frequent and mostly harmless; the lines of a short excerpt were selected by a person.
"""

from __future__ import annotations

import re

from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add_sign

SIGN = "speaks-of-failure"
# Besides logs, kinds of input with sentences. In listings these words are field names.
SENTENCES = frozenset({"text", "container_runtime", "kubectl_describe_pod", "mig", "burn_test", "nccl_tests"})
MAX_LINES = 80
FAILURE = re.compile(
    r"(?i)\b(?:failed|fatal|abort(?:ed|ing)|cannot|can't|could not|couldn't|unable to|refused|denied|not permitted"
    r"|timed out|crashed|panic)\b"
)
# Lines below error level, counts of zero, and the kernel's taint message for an out-of-tree driver.
HARMLESS = re.compile(
    r"\btaint(?:s|ing) kernel\b|\b(?:INFO|DEBUG|TRACE)\b|\blevel=(?:info|debug|trace)\b|^[ID]\d{4} "
    r"|(?i:(?<![.:])\b(?:0|no|not|never|zero|without)\s+(?:\w+ )?(?:failed|fatal|aborted|crashed)\b|\bfailed\W{1,3}0\b)"
)


def read(listing: Listing, facts: DoctorFacts) -> None:
    """Add the lines of a short text that report a failure."""
    if len(listing.lines) > MAX_LINES or not (listing.kind.endswith("_log") or listing.kind in SENTENCES):
        return
    for number, line in enumerate(listing.lines, 1):
        if FAILURE.search(line) and not HARMLESS.search(line):
            add_sign(facts, listing, SIGN, line=number, fields={})
