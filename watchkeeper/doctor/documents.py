"""Whole documents into sightings: listings and dumps whose lines mean something only together.

Each reading function below looks whether the beginning of an input is its business and adds what it sees. A
paste is often a mixture (a scheduler's line, then an nvidia-smi table), so every function is tried.
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
    """The beginning of one input, as text, without the prefix that a shipper put before each line.

    `written` has the lines with it: they are shown, and may name a node or a rank.
    """

    name: str
    kind: str
    text: str
    written: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")


Reading = Callable[[Document, DoctorFacts], None]
READINGS: tuple[Reading, ...] = (
    gpu_listings.read,
    fabric_listings.read,
    cluster_listings.read,
    trends.read,
    excerpts.read,
    records.read,
)


def read(name: str, kind: str, head: str, *, facts: DoctorFacts, table: SignTable) -> None:
    """Add what the document says to the facts."""
    document = Document(name, kind, shipped_text.strip_prefixes(head), head.split("\n"))
    for sign in table.of_listings:
        if any(needed in document.text for needed in sign.needs):
            _search(document, sign, facts)
    for reading in READINGS:
        reading(document, facts)


def text_of(head: bytes) -> str:
    raw = log_text.ANSI.sub(b"", head) if b"\x1b" in head else head
    return raw.decode("utf-8", errors="replace").replace("\r\n", "\n")


def _search(document: Document, sign: Sign, facts: DoctorFacts) -> None:
    """A sign without words: its pattern over every line of the beginning."""
    line, at = 1, 0
    for count, match in enumerate(sign.compiled.finditer(document.text)):
        if count >= MAX_MATCHES_IN_A_LISTING:
            return
        line += document.text.count("\n", at, match.start())
        at = match.start()
        text = document.written[line - 1]
        fields = dict(line_prefix.read_prefix(text)) | {key: value for key, value in match.groupdict().items() if value}
        facts.add(sign.id, input=document.name, line=line, text=excerpt(text, 0), fields=fields)
