"""A target's pages in whatever form they come: text, OpenMetrics, or protobuf where native histograms are wanted.

`target_loop` asks for a page with `accept` and hands the answer to `parse`. A target that changes its form is read by
another parser from then on, which remembers nothing of the pages before. Protocols have the names that they have in
`scrape_protocols` of a prometheus.yml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import labels
from watchkeeper.readers import exposition, exposition_protobuf

# Protobuf alone brings native histograms. It takes 17 times as long to read as text, which is why it is asked for only
# where somebody wants them.
PROTOBUF = "PrometheusProto"
OPENMETRICS, PLAIN_TEXT = "OpenMetricsText1.0.0", "PrometheusText0.0.4"
PROTOCOLS = {
    PROTOBUF: exposition_protobuf.ACCEPT,
    OPENMETRICS: "application/openmetrics-text;version=1.0.0",
    "OpenMetricsText0.0.1": "application/openmetrics-text;version=0.0.1",
    "PrometheusText1.0.0": "text/plain;version=1.0.0",
    PLAIN_TEXT: "text/plain;version=0.0.4",
}
# Those in which names may have any characters.
ESCAPING_PROTOCOLS = frozenset({PROTOBUF, OPENMETRICS, "PrometheusText1.0.0"})
ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")
# What our own lists are asked with; OpenMetrics is for those who write nothing else.
DEFAULT_PROTOCOLS = ("PrometheusText1.0.0", PLAIN_TEXT, OPENMETRICS)
# What answers instead of an exporter when an address is wrong.
NOT_METRICS = ("text/html", "application/json")


def accept_header(protocols: Sequence[str] = (), *, wants_native: bool = False, escaping: str = ESCAPINGS[0]) -> str:
    """The header that asks for these protocols, the best first; without any, for those of our own lists."""
    listed = protocols or DEFAULT_PROTOCOLS
    if wants_native and not protocols:
        listed = (PROTOBUF, *DEFAULT_PROTOCOLS)
    clauses = []
    for place, name in enumerate(listed):
        spoken = f"{PROTOCOLS[name]};escaping={escaping}" if name in ESCAPING_PROTOCOLS else PROTOCOLS[name]
        clauses.append(f"{spoken};q={1 - place / 10:g}")
    return ",".join([*clauses, "*/*;q=0.1"])


class PageParser:
    """The parser of one target; what it knows of series and metrics is that of the form that came last."""

    def __init__(self, *, max_series: int, accept: str = "", keeps_classic: bool = False) -> None:
        self.accept = accept or accept_header()
        self._max_series, self._keeps_classic = max_series, keeps_classic
        self._text: exposition.ExpositionParser | None = exposition.ExpositionParser(max_series=max_series)
        self._protobuf: exposition_protobuf.ProtobufParser | None = None
        # Counts the changes of form, so that handles of one form mean nothing in the other.
        self._changes = 0

    @property
    def _parser(self) -> exposition.ExpositionParser | exposition_protobuf.ProtobufParser:
        found = self._text or self._protobuf
        assert found is not None
        return found

    @property
    def labels(self) -> Sequence[labels.Labels]:
        """The series of each handle."""
        return self._parser.labels

    @property
    def families(self) -> Mapping[str, exposition.FamilyMetadata]:
        """What the exporter says about its metrics."""
        return self._parser.families

    @property
    def families_version(self) -> tuple[int, int]:
        return self._changes, self._parser.families_version

    def parse(self, body: bytes, kind: str) -> exposition.ExpositionPage:
        """Every readable sample of a page of this content type; CollectError if it is none."""
        is_protobuf = kind.startswith(exposition_protobuf.CONTENT_TYPE)
        is_delimited = "encoding=delimited" in kind.replace(" ", "")
        if kind.startswith(NOT_METRICS) or (is_protobuf and not is_delimited):
            remedy = "Of protobuf only encoding=delimited is read" if is_protobuf else None
            raise CollectError(
                f"answers with {quote(kind)}, not with a page of metrics",
                remedy=remedy or "Check address and path of the target",
            )
        return self._parse_protobuf(body) if is_protobuf else self._parse_text(body, kind)

    def _parse_text(self, body: bytes, kind: str) -> exposition.ExpositionPage:
        if self._text is None:
            self._text = exposition.ExpositionParser(max_series=self._max_series)
            self._text.epoch = self._begin_anew()
            self._protobuf = None
        return self._text.parse(body, openmetrics=kind.startswith("application/openmetrics-text"))

    def _parse_protobuf(self, body: bytes) -> exposition.ExpositionPage:
        if self._protobuf is None:
            self._protobuf = exposition_protobuf.ProtobufParser(
                max_series=self._max_series, keeps_classic=self._keeps_classic
            )
            self._protobuf.epoch = self._begin_anew()
            self._text = None
        return self._protobuf.parse(body)

    def _begin_anew(self) -> int:
        """An epoch that the form before has not had."""
        self._changes += 1
        return self._parser.epoch + 1
