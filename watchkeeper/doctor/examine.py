"""Run the doctor: read each stream once, then judge all facts together.

The command line calls `examine` with the streams of `readers.bundles` and prints the report.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from watchkeeper.doctor import documents, places, ranking, report, scan, signatures, timeline
from watchkeeper.doctor.facts import DoctorFacts, Input
from watchkeeper.doctor.judgements import JUDGEMENTS, first_error, general
from watchkeeper.doctor.recognise import NOT_LOGS, recognise
from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers import bundles, flight_recorder
from watchkeeper.readers.logs import log_text, shipped_documents, shipped_text

# Documents with their own reader, which are not unpacked.
OWN_READER = frozenset({"flight_recorder", "nvidia_smi_xml", "kubernetes_json", "kubernetes_yaml", "slurm_json"})
WHOLE_DOCUMENTS = OWN_READER | {"json"}
PEEK_BYTES = 65_536
# If no opinion reaches this, only an error without a cause is known, and hints are used too.
MIN_CONFIDENCE = 0.25


def examine(streams: Iterable[bundles.Stream], progress: Callable[[int], None] = lambda _: None) -> report.DoctorReport:
    """Read every stream and return the report; `progress` is called with the number of bytes of each read."""
    facts = DoctorFacts()
    for stream in streams:
        _read(stream, facts, progress)
    timeline.order_by_time(facts)
    places.assign_places(facts)
    opinions = first_error.weaken_late_opinions(
        facts, (opinion for judgement in JUDGEMENTS for opinion in judgement(facts))
    )
    if all(opinion.confidence < MIN_CONFIDENCE for opinion in opinions):
        opinions += general.hints(facts)
    findings = ranking.rank_causes(opinions) or ranking.rank_causes(general.unexplained_failures(facts))
    if not findings:
        # Advice about settings applies even without a fault.
        advice = [text for opinion in opinions if not opinion.cause for text in opinion.advice]
        facts.notes += dict.fromkeys([*general.harmless(facts), *advice])
    return report.build(facts, findings)


def _read(stream: bundles.Stream, facts: DoctorFacts, progress: Callable[[int], None]) -> None:
    table = signatures.table()
    start = stream.peek(PEEK_BYTES)
    kind = recognise(stream.name, start)
    if kind == "flight_recorder":
        _read_flight_recorder(stream, facts)
        return
    if kind in NOT_LOGS:
        facts.inputs.append(Input(stream.name, kind, "not a log: its texts about failures were not checked"))
        return
    if kind == "binary":
        facts.inputs.append(Input(stream.name, kind, stream.problem or "not text, not read"))
        return
    unpacked = _unpack(stream, start, kind)
    limit = scan.DOCUMENT_BYTES if unpacked.kind in WHOLE_DOCUMENTS else scan.HEAD_BYTES
    tee = scan.Tee(unpacked.source, limit, progress, unpacked.unwrap)
    scan.scan(stream.name, tee, facts, table=table, wrapping=unpacked.wrapping)
    head = documents.decode_head(tee.head)
    if unpacked.kind in ("text", "json"):
        kind = recognise(stream.name, shipped_text.strip_prefixes(head).encode())
    documents.read_document(stream.name, kind, head, facts=facts, table=table)
    facts.inputs.append(Input(stream.name, kind, stream.problem))


def _read_flight_recorder(stream: bundles.Stream, facts: DoctorFacts) -> None:
    raw = stream.peek(scan.DOCUMENT_BYTES)
    problem = stream.problem
    try:
        dump = flight_recorder.read(stream.name, raw)
    except WatchkeeperError as error:
        problem = str(error)
    else:
        text = f"{len(dump.collectives)} collectives"
        if dump.collectives:
            last = dump.collectives[-1]
            text += f", last {last.operation} {last.sequence} {last.state}"
        fields = {} if dump.rank is None else {"rank": str(dump.rank)}
        facts.add_dump(dump, input=stream.name, text=text, fields=fields)
    facts.inputs.append(Input(stream.name, "flight_recorder", problem))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An input without its encoding and the format of a log shipper or log store.

    `wrapping` and `unwrap` unpack single lines only when they are read.
    """

    kind: str
    source: log_text.ByteStream
    wrapping: log_text.Wrapping | None = None
    unwrap: Callable[[bytes], bytes] | None = None


def _unpack(stream: bundles.Stream, start: bytes, kind: str) -> Unpacked:
    utf16 = bundles.detect_utf16(start)
    marks = (codecs.BOM_UTF8, *bundles.BYTE_ORDER_MARKS)
    byte_order_mark = next((mark for mark in marks if start.startswith(mark)), b"")
    if byte_order_mark:
        stream.read(len(byte_order_mark))
    start = start.removeprefix(byte_order_mark)
    source: log_text.ByteStream = stream if utf16 is None else bundles.Utf8Stream(stream, utf16)
    if kind in OWN_READER:
        return Unpacked(kind, source)
    unwrapper = shipped_text.find_unwrapper(start)
    if unwrapper is shipped_text.unwrap_json:
        return Unpacked("text", source, shipped_text.JsonLines(), shipped_text.UnwrappedStream(source, unwrapper).feed)
    if unwrapper is not None:
        return Unpacked("text", shipped_text.UnwrappedStream(source, unwrapper))
    if utf16 is None and shipped_documents.is_document(start):
        raw = stream.peek(shipped_documents.MAX_BYTES + 1)
        lines = shipped_documents.read_lines(raw) if len(raw) <= shipped_documents.MAX_BYTES else None
        if lines is not None:
            return Unpacked("text", io.BytesIO(lines))
    return Unpacked(kind, source)
