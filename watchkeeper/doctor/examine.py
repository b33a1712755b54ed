"""The doctor's whole way: each stream read once, then one judgement over everything.

The command line calls `examine` with the streams of `readers.bundles`; the Report goes to the printer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from watchkeeper.doctor import documents, places, ranking, report, scan, signatures, timeline, unpacking
from watchkeeper.doctor.facts import DoctorFacts, Input
from watchkeeper.doctor.judgements import JUDGEMENTS, first_error, general
from watchkeeper.doctor.opinion import Opinion
from watchkeeper.doctor.recognise import NO_LOGS, recognise
from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers import bundles, flight_recorder
from watchkeeper.readers.logs import shipped_text

WHOLE_DOCUMENTS = frozenset(
    {"flight_recorder", "nvidia_smi_xml", "kubernetes_json", "kubernetes_yaml", "slurm_json", "json"}
)
PEEK_BYTES = 65_536
# Opinions below this only say that some error was seen; then even a hint helps.
SAYS_NOTHING = 0.25


def examine(streams: Iterable[bundles.Stream], progress: Callable[[int], None] = lambda _: None) -> report.DoctorReport:
    """Read every stream and say what is wrong; `progress` is told of the bytes as they are read."""
    facts = DoctorFacts()
    for stream in streams:
        _read(stream, facts, progress)
    timeline.settle(facts)
    places.settle(facts)
    opinions = first_error.weaken_late(facts, (opinion for judgement in JUDGEMENTS for opinion in judgement(facts)))
    if all(opinion.confidence < SAYS_NOTHING for opinion in opinions):
        opinions += general.hints(facts)
    findings = ranking.rank(opinions) or ranking.rank(general.failing_words(facts))
    if not findings:
        facts.notes += dict.fromkeys([*general.harmless(facts), *_advice(opinions)])
    return report.build(facts, findings)


def _advice(opinions: Iterable[Opinion]) -> list[str]:
    """What may be changed though nothing is wrong."""
    return [text for opinion in opinions if not opinion.cause for text in opinion.advice]


def _read(stream: bundles.Stream, facts: DoctorFacts, progress: Callable[[int], None]) -> None:
    table = signatures.table()
    start = stream.peek(PEEK_BYTES)
    kind = recognise(stream.name, start)
    if kind == "flight_recorder":
        _read_dump(stream, facts)
        return
    if kind in NO_LOGS:
        facts.inputs.append(Input(stream.name, kind, "is no log: it only speaks of failures, and was not judged"))
        return
    if kind == "binary":
        facts.inputs.append(Input(stream.name, kind, stream.problem or "is not text and was not read"))
        return
    given = unpacking.unpack(stream, start, kind, whole=WHOLE_DOCUMENTS - {"json"})
    limit = scan.DOCUMENT_BYTES if given.kind in WHOLE_DOCUMENTS else scan.HEAD_BYTES
    tee = scan.Tee(given.source, limit, progress, given.inside)
    scan.scan(stream.name, tee, facts, table=table, wrapping=given.wrapping)
    head = documents.text_of(tee.head)
    if given.kind in ("text", "json"):
        kind = recognise(stream.name, shipped_text.strip_prefixes(head).encode())
    documents.read(stream.name, kind, head, facts=facts, table=table)
    facts.inputs.append(Input(stream.name, kind, stream.problem))


def _read_dump(stream: bundles.Stream, facts: DoctorFacts) -> None:
    raw = stream.peek(scan.DOCUMENT_BYTES)
    problem = stream.problem
    try:
        dump = flight_recorder.read(stream.name, raw)
    except WatchkeeperError as error:
        problem = str(error)
    else:
        last = dump.collectives[-1] if dump.collectives else None
        text = f"{len(dump.collectives)} collectives" + (
            f", last {last.operation} {last.sequence} {last.state}" if last else ""
        )
        fields = {} if dump.rank is None else {"rank": str(dump.rank)}
        facts.add_dump(dump, input=stream.name, text=text, fields=fields)
    facts.inputs.append(Input(stream.name, "flight_recorder", problem))
