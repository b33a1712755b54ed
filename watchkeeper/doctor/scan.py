"""Scan an input once: matching lines become sightings and events, the beginning is kept for `documents`.

The beginning shows the kind of the input; tables and listings, which need several lines, are read from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.doctor.facts import EVIDENCE_CHARACTERS, MAX_SIGHTINGS_PER_SIGN, DoctorFacts
from watchkeeper.doctor.signatures import Role, Sign, SignTable, sign_tests
from watchkeeper.readers.logs import kernel_log, line_prefix, log_text

# Pasted listings are smaller; the beginning of a longer log shows its kind.
HEAD_BYTES = 2 << 20
# JSON, XML and pickled dumps can only be read completely.
DOCUMENT_BYTES = 64 << 20
# Every line that readers/logs/kernel_log.py recognises has one of these words.
KERNEL_WORDS = frozenset(
    b"nvrm sxid bus nvlink aer dpc pciehp hardware edac memory mlx linux vi dmar smmu nfs lockd evicted restored "
    b"ceph".split()
)
NEGATION = re.compile(r"(?i)(?:^|\W)(?:no|zero|without|never)\s+$|(?:^|[\s(,;|])0\s+$")
# Index 0 is no negation: `GPU 0 has fallen off the bus`, `rank 0 out of memory`.
NUMBERED = re.compile(
    r"(?i)(?:rank|gpu|device|node|link|port|task|worker|slot|cpu|engine|actor|stage|socket)\W{0,2}\s*0\s+$"
)
NEGATION_CHARACTERS = 16
# checkpoint 100 saved with 0 errors
COUNTED = re.compile(
    r"(?i)(?<![\w.-])(?:0|no|zero|without(?: any)?) (?:\w+ )?(?:errors|failures|faults|violations|timeouts)\b"
)
# Lines that only quote a failure: the raising statement in a traceback, whose message is on another line; the name of a
# test; the text of an alert with a placeholder.
#     raise RuntimeError("…")      tests/test_memory.py::test_out_of_memory PASSED      summary: … on {{ $labels.node }}
QUOTED = re.compile(r"^\s*(?:raise|assert) \w|::\w+(?:\[[^\]]*\])? (?:PASSED|SKIPPED|XFAIL)\b|\{\{-? ?[$.]\w")
KERNEL_NEEDLES = re.compile(
    b"|".join(re.escape(needle.translate(None, log_text.DIGITS)) for needle in kernel_log.NEEDLES)
)


@dataclass(slots=True)
class Tee:
    """Reads from a stream and keeps its beginning."""

    source: log_text.ByteStream
    limit: int
    on_read: Callable[[int], None]
    # Lines are kept unpacked.
    unwrap: Callable[[bytes], bytes] | None
    _kept: list[bytes] = field(default_factory=list)
    _kept_bytes: int = 0

    def read(self, size: int, /) -> bytes:
        piece = self.source.read(size)
        self.on_read(len(piece))
        if self._kept_bytes < self.limit:
            kept = piece if self.unwrap is None else self.unwrap(piece)
            self._kept.append(kept)
            self._kept_bytes += len(kept)
        return piece

    @property
    def head(self) -> bytes:
        return b"".join(self._kept)[: self.limit]


@dataclass(frozen=True, slots=True)
class LineTests:
    """The tests for lines of one shape: a kernel message, or one of some signs.

    Each sign has the texts that need digits, which a shape does not have.
    """

    is_kernel: bool
    signs: tuple[tuple[Sign, tuple[str, ...]], ...]


def scan(
    name: str,
    stream: log_text.ByteStream,
    facts: DoctorFacts,
    *,
    table: SignTable,
    wrapping: log_text.Wrapping | None = None,
) -> None:
    words = frozenset(table.by_word) | KERNEL_WORDS
    clock: line_prefix.LineClock | None = None
    for line in log_text.find_lines(stream, words, match_shape, wrapping=wrapping):
        if line.verdict.is_kernel:
            clock = _read_kernel_line(name, line, facts, clock=clock)
        for sign, texts in line.verdict.signs:
            if facts.count(sign.id) < MAX_SIGHTINGS_PER_SIGN and (not texts or _has_one(line.text.lower(), texts)):
                clock = _match(name, line, sign, facts=facts, clock=clock)


def match_shape(shape: bytes, words: frozenset[bytes]) -> LineTests | None:
    """The signs that a line of this shape may have; None if there are none, so that such lines are skipped."""
    is_kernel = not KERNEL_WORDS.isdisjoint(words) and KERNEL_NEEDLES.search(shape) is not None
    lowered = shape.lower().decode("latin-1")
    matching: list[tuple[Sign, tuple[str, ...]]] = []
    for test in sign_tests(words):
        # Deliberately inline: a call for each test would take longer than the test.
        for texts in test.clauses:
            for text in texts:
                if text in lowered:
                    break
            else:
                break
        else:
            matching.append((test.sign, test.with_digits))
    return LineTests(is_kernel, tuple(matching)) if matching or is_kernel else None


def _has_one(lowered: str, texts: tuple[str, ...]) -> bool:
    return any(text in lowered for text in texts)


def _match(
    name: str, line: log_text.LogLine[LineTests], sign: Sign, *, facts: DoctorFacts, clock: line_prefix.LineClock | None
) -> line_prefix.LineClock | None:
    """Add the sign if the line matches; return the clock of this line, otherwise the given clock."""
    line_text = line.text
    text = line.unwrapped if sign.spans_lines else line_text
    match = sign.match(text)
    if match is None or _is_negated(match, sign) or QUOTED.search(line_text) or match.start() > len(line_text):
        # A match that starts on a later line is found there, with the fields of that line.
        return clock
    clock = line_prefix.read_clock(line_text) or clock
    fields = dict(line_prefix.read_prefix(line_text))
    if not fields and _continues_previous(line) and "rank" in (before := line_prefix.read_prefix(line.preceding)):
        # In a message of several lines, the rank is only on the first line.
        fields = {"rank": before["rank"]}
    fields.update({key: value.strip() for key, value in match.groupdict().items() if value})
    facts.add(sign.id, input=name, line=line.number, text=excerpt(text, match.start()), fields=fields, clock=clock)
    return clock


def _continues_previous(line: log_text.LogLine[LineTests]) -> bool:
    """Whether the line continues the message of the line before; two adjacent lines may be of different ranks."""
    return line.text[:1].isspace() or line.preceding.rstrip().endswith((":", ",", "(", "\\"))


def _is_negated(match: re.Match[str], sign: Sign) -> bool:
    """Whether the words before the match negate it: `no thermal violations detected`, `0 double-bit errors`."""
    words = match.string[max(0, match.start() - NEGATION_CHARACTERS) : match.start()]
    start, end = match.span()
    # To the end of its last word.
    while end < len(match.string) and match.string[end].isalpha():
        end += 1
    if sign.role is Role.HINT:
        # A hint is checked over its whole line.
        start, end = 0, len(match.string)
    if COUNTED.search(match.string, start, end) is not None:
        return True
    return NEGATION.search(words) is not None and NUMBERED.search(words) is None


def excerpt(text: str, at: int) -> str:
    """The part of a long line around the match."""
    if len(text) <= EVIDENCE_CHARACTERS:
        return text
    start = max(0, min(at - 80, len(text) - EVIDENCE_CHARACTERS))
    return ("…" if start else "") + text[start : start + EVIDENCE_CHARACTERS - 2]


def _read_kernel_line(
    name: str, line: log_text.LogLine[LineTests], facts: DoctorFacts, *, clock: line_prefix.LineClock | None
) -> line_prefix.LineClock | None:
    text = line.text
    fact = kernel_log.read_line(text)
    if fact is None:
        return clock
    clock = line_prefix.read_clock(text) or clock
    if isinstance(fact, kernel_log.GpuIdentity):
        facts.add("gpu-identity", input=name, line=line.number, text=text, fields={"pci": fact.pci, "uuid": fact.uuid})
        return clock
    fields: dict[str, str] = dict(line_prefix.read_prefix(text))
    fact_fields = {"pci": fact.pci, "process": fact.process, "pid": None if fact.pid is None else str(fact.pid)}
    fields.update({key: value for key, value in fact_fields.items() if value})
    fields.update(fact.fields)
    if fact.code is not None:
        fields["code"] = str(fact.code)
    kind, at = fact.kind.value, line_prefix.read_time(text)
    facts.add(f"kernel-{kind}", input=name, line=line.number, text=text, fields=fields, clock=clock)
    event: dict[str, Any] = {"kind": kind, "code": fact.code, "pci": fact.pci, "pid": fact.pid, "process": fact.process}
    event |= {"at": None if at is None else at.isoformat(), "node": fields.get("node")}
    event |= {"input": name, "line": line.number}
    if at is None and (since_boot := line_prefix.read_seconds_since_boot(text)) is not None:
        event["seconds_since_boot"] = since_boot
    facts.add_event(event)
    return clock
