"""Find signs in whole documents: listings and dumps whose lines have a meaning only together.

Each reader checks whether the beginning of an input is a listing that it can read, and adds signs. Pasted text is
often a mixture, such as a scheduler message and an nvidia-smi table, so all readers are tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

from watchkeeper.doctor import cluster_listings, driver_listings, gpu_listings, records, trends
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing
from watchkeeper.doctor.scan import excerpt
from watchkeeper.doctor.signatures import SignTable
from watchkeeper.readers.logs import line_prefix, log_text, shipped_text

MAX_MATCHES_IN_A_LISTING = 500
FAILURE_SIGN = "speaks-of-failure"
# Besides logs, kinds of input with sentences. In listings these words are field names.
SENTENCES = frozenset({"text", "container_runtime", "kubectl_describe_pod", "mig", "burn_test", "nccl_tests"})
# In a long log words of failure are frequent and mostly harmless; a person selected the lines of a short excerpt.
MAX_EXCERPT_LINES = 80
FAILURE = re.compile(
    r"(?i)\b(?:failed|fatal|abort(?:ed|ing)|cannot|can't|could not|couldn't|unable to|refused|denied|not permitted"
    r"|timed out|crashed|panic)\b"
)
# Lines below error level, counts of zero, and the kernel's taint message for an out-of-tree driver.
HARMLESS = re.compile(
    r"\btaint(?:s|ing) kernel\b|\b(?:INFO|DEBUG|TRACE)\b|\blevel=(?:info|debug|trace)\b|^[ID]\d{4} "
    r"|(?i:(?<![.:])\b(?:0|no|not|never|zero|without)\s+(?:\w+ )?(?:failed|fatal|aborted|crashed)\b|\bfailed\W{1,3}0\b)"
)


def read_document(name: str, kind: str, head: str, *, facts: DoctorFacts, table: SignTable) -> None:
    listing = Listing(facts, name, kind, shipped_text.strip_prefixes(head), head.split("\n"))
    for sign in table.without_words:
        if any(text in listing.text for text in sign.needs):
            for line, match in islice(listing.numbered_matches(sign.compiled), MAX_MATCHES_IN_A_LISTING):
                text = listing.original_lines[line - 1]
                values = {key: value for key, value in match.groupdict().items() if value}
                fields = dict(line_prefix.read_prefix(text)) | values
                facts.add(sign.id, input=name, line=line, text=excerpt(text, 0), fields=fields)
    for read_listing in LISTING_READERS:
        read_listing(listing)


def decode_head(head: bytes) -> str:
    raw = log_text.ANSI.sub(b"", head) if b"\x1b" in head else head
    return raw.decode("utf-8", errors="replace").replace("\r\n", "\n")


def read_failure_lines(listing: Listing) -> None:
    """Add the lines of a short text that report a failure, even if no sign matches them."""
    if len(listing.lines) > MAX_EXCERPT_LINES or not (listing.kind.endswith("_log") or listing.kind in SENTENCES):
        return
    for number, line in enumerate(listing.lines, 1):
        if FAILURE.search(line) and not HARMLESS.search(line):
            listing.add_sign(FAILURE_SIGN, number)


LISTING_READERS: tuple[Callable[[Listing], None], ...] = (
    gpu_listings.read_gpu_signs, driver_listings.read_driver_signs, cluster_listings.read_fabric_signs,
    cluster_listings.read_cluster_signs, trends.read_trend_signs, read_failure_lines, records.read,
)  # fmt: skip
