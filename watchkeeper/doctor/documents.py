"""Find signs in whole documents: listings and dumps whose lines have a meaning only together.

Each reader checks whether the beginning of an input is a listing that it can read, and adds signs. Pasted text is
often a mixture, such as a scheduler message and an nvidia-smi table, so all readers are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from watchkeeper.doctor import cluster_listings, excerpts, fabric_listings, gpu_listings, records, trends
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.scan import excerpt
from watchkeeper.doctor.signatures import Sign, SignTable
from watchkeeper.readers.logs import line_prefix, log_text, shipped_text

MAX_MATCHES_IN_A_LISTING = 500


@dataclass(slots=True)
class Document:
    """The beginning of one input as text, without the prefixes that a log shipper adds to lines.

    `original_lines` include the prefixes: they are shown, and may name a node or a rank.
    """

    name: str
    kind: str
    text: str
    original_lines: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")


ListingReader = Callable[[Document, DoctorFacts], None]
LISTING_READERS: tuple[ListingReader, ...] = (
    gpu_listings.read_gpu_signs,
    fabric_listings.read_fabric_signs,
    cluster_listings.read_cluster_signs,
    trends.read_trend_signs,
    excerpts.read,
    records.read,
)


def read_document(name: str, kind: str, head: str, *, facts: DoctorFacts, table: SignTable) -> None:
    """Add the signs of a document to the facts."""
    document = Document(name, kind, shipped_text.strip_prefixes(head), head.split("\n"))
    for sign in table.without_words:
        if any(text in document.text for text in sign.needs):
            _add_pattern_signs(document, sign, facts)
    for read_listing in LISTING_READERS:
        read_listing(document, facts)


def decode_head(head: bytes) -> str:
    raw = log_text.ANSI.sub(b"", head) if b"\x1b" in head else head
    return raw.decode("utf-8", errors="replace").replace("\r\n", "\n")


def _add_pattern_signs(document: Document, sign: Sign, facts: DoctorFacts) -> None:
    """Add each match of a sign without words in the beginning of the input."""
    line, at = 1, 0
    for count, match in enumerate(sign.compiled.finditer(document.text)):
        if count >= MAX_MATCHES_IN_A_LISTING:
            return
        line += document.text.count("\n", at, match.start())
        at = match.start()
        text = document.original_lines[line - 1]
        fields = dict(line_prefix.read_prefix(text)) | {key: value for key, value in match.groupdict().items() if value}
        facts.add(sign.id, input=document.name, line=line, text=excerpt(text, 0), fields=fields)
