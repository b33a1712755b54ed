"""Parse a target's pages in any format: text, OpenMetrics, or protobuf if native histograms are enabled.

When a target changes its format, a new parser without state reads it from then on. Protocols are named as in
`scrape_protocols` of a prometheus.yml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import labels
from watchkeeper.readers import exposition, exposition_protobuf

# Only protobuf carries native histograms. Parsing takes 17 times as long as text, so it is requested only for jobs
# with native histograms.
PROTOBUF = "PrometheusProto"
OPENMETRICS, PLAIN_TEXT = "OpenMetricsText1.0.0", "PrometheusText0.0.4"
PROTOCOLS = {
    PROTOBUF: exposition_protobuf.ACCEPT,
    OPENMETRICS: "application/openmetrics-text;version=1.0.0",
    "OpenMetricsText0.0.1": "application/openmetrics-text;version=0.0.1",
    "PrometheusText1.0.0": "text/plain;version=1.0.0",
    PLAIN_TEXT: "text/plain;version=0.0.4",
}
# Protocols in which names may contain any characters.
ESCAPING_PROTOCOLS = frozenset({PROTOBUF, OPENMETRICS, "PrometheusText1.0.0"})
ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")
# The request for targets of the hub's own lists; OpenMetrics is for exporters that support nothing else.
DEFAULT_PROTOCOLS = ("PrometheusText1.0.0", PLAIN_TEXT, OPENMETRICS)
# Content types of other servers: the address or path of the target is probably wrong.
NOT_METRICS = ("text/html", "application/json")


def accept_header(protocols: Sequence[str] = (), *, wants_native: bool = False, escaping: str = ESCAPINGS[0]) -> str:
    """The Accept header for these protocols, in order of preference; for the defaults if there are none."""
    listed = protocols or ((PROTOBUF, *DEFAULT_PROTOCOLS) if wants_native else DEFAULT_PROTOCOLS)
    clauses = []
    for position, name in enumerate(listed):
        media_type = f"{PROTOCOLS[name]};escaping={escaping}" if name in ESCAPING_PROTOCOLS else PROTOCOLS[name]
        clauses.append(f"{media_type};q={1 - position / 10:g}")
    return ",".join([*clauses, "*/*;q=0.1"])


class PageParser:
    """The parser of one target; its series and metrics are those of the last format."""

    def __init__(self, *, max_series: int, accept: str = "", keeps_classic: bool = False) -> None:
        self.accept = accept or accept_header()
        self._max_series, self._keeps_classic = max_series, keeps_classic
        self._parser: exposition.ExpositionParser | exposition_protobuf.ProtobufParser = exposition.ExpositionParser(
            max_series=max_series
        )
        # Counts format changes, so that handles of one format are not used for another.
        self._changes = 0

    @property
    def labels(self) -> Sequence[labels.Labels]:
        return self._parser.labels

    @property
    def families(self) -> Mapping[str, exposition.FamilyMetadata]:
        return self._parser.families

    @property
    def families_version(self) -> tuple[int, int]:
        return self._changes, self._parser.families_version

    def parse(self, body: bytes, kind: str) -> exposition.ExpositionPage:
        """All readable samples of a page of this content type; CollectError if it is not a metrics page."""
        is_protobuf = kind.startswith(exposition_protobuf.CONTENT_TYPE)
        is_delimited = "encoding=delimited" in kind.replace(" ", "")
        if kind.startswith(NOT_METRICS) or (is_protobuf and not is_delimited):
            remedy = "Protobuf is read only with encoding=delimited" if is_protobuf else None
            raise CollectError(
                f"answered with content type {quote(kind)}, expected a metrics page",
                remedy=remedy or "Check address and path of the target",
            )
        if is_protobuf is not isinstance(self._parser, exposition_protobuf.ProtobufParser):
            self._change_format(is_protobuf)
        if isinstance(self._parser, exposition.ExpositionParser):
            return self._parser.parse(body, openmetrics=kind.startswith("application/openmetrics-text"))
        return self._parser.parse(body)

    def _change_format(self, is_protobuf: bool) -> None:
        # An epoch that the previous format did not use.
        epoch = self._parser.epoch + 1
        if is_protobuf:
            self._parser = exposition_protobuf.ProtobufParser(
                max_series=self._max_series, keeps_classic=self._keeps_classic
            )
        else:
            self._parser = exposition.ExpositionParser(max_series=self._max_series)
        self._parser.epoch = epoch
        self._changes += 1
