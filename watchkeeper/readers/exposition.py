"""Prometheus text pages (0.0.4, and OpenMetrics 1.0 with its exemplars) into handles and values.

An exporter sends the same series again and again, only the values change. So each target has its own
parser, which remembers the raw bytes before each value. A page laid out as the one before costs a
comparison with them; else a line seen before costs one split and one dictionary look-up, and only a new
line is read label by label. The scraper maps the handles to stored series once and hands the values on.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import labels
from watchkeeper.model.histograms import Histogram

# A full dcgm-exporter page of an 8-GPU node has some 500 series, kube-state-metrics of 20,000 GPUs some 60,000 of those
# that our rules read; a page far above that is a mistake.
MAX_SERIES = 250_000
# Enough to recognise the problem; the count tells how large it is.
BAD_LINES_NAMED = 5
# What a label may hold; a longer value is a stack trace or a file, and would be kept once for each series.
MAX_LABEL_LENGTH = 4096
MAX_LABELS = 64
# Series that came and went are forgotten once there are so many of them beyond half of the present ones. Each is a kB,
# of every target: a page of a node has 500.
FORGET_SLACK = 200

# DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 41
NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
PLAIN_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
# "0", and the escapes \\ \" \n inside the quotes
QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
# gpu="0", or "gpu.index"="0"
LABEL = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{QUOTED})[ \t]*=[ \t]*{QUOTED}[ \t]*(?:,|(?=\}}))")
# {"gpu.temp",gpu="0"} 41, which is how Prometheus 3 writes names of any characters
QUOTED_NAME = re.compile(rf"\{{[ \t]*{QUOTED}[ \t]*(?:,|(?=\}}))")
# # HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
COMMENT = re.compile(rf"#[ \t]+(HELP|TYPE|UNIT)[ \t]+(?:([a-zA-Z_:][a-zA-Z0-9_:]*)|{QUOTED})[ \t]*(.*)")
ESCAPE = re.compile(r"\\([\\\"n])")
# Go's ParseFloat as Prometheus uses it: no digit separators and no hexadecimal.
FLOAT = re.compile(rb"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)


class BadLine(Exception):
    """Why one line of a page cannot be read; the page's other lines are kept."""


@dataclass(frozen=True, slots=True)
class FamilyMetadata:
    """What an exporter says about a metric name."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ExpositionPage:
    """One page: `values[i]` belongs to the series `parser.labels[handles[i]]`.

    `handles` is the same list object as on the page before while the series stay the same.
    `timestamps_ms` maps positions to explicit times and is empty for ordinary exporters. When `epoch`
    changes the parser has forgotten old series and every handle has a new meaning.
    """

    handles: list[int]
    values: array[float]
    epoch: int
    timestamps_ms: Mapping[int, int] = field(default_factory=dict)
    bad_lines: int = 0
    problems: tuple[str, ...] = ()
    # Those that were not on the page before, by the handle of their series; a time of None is that of the scrape.
    exemplars: tuple[tuple[int, labels.Labels, float, int | None], ...] = ()
    # Native histograms by the handle of their series, which is not among `handles`; pages of text have none.
    histograms: tuple[tuple[int, Histogram, int | None], ...] = ()


@dataclass(slots=True)
class _TextReading:
    """What has been gathered of a page so far."""

    handles: list[int] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    timestamps_ms: dict[int, int] = field(default_factory=dict)
    bad_lines: int = 0
    problems: list[str] = field(default_factory=list)
    exemplars: list[tuple[int, labels.Labels, float, int | None]] = field(default_factory=list)

    def complain(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        if len(self.problems) < BAD_LINES_NAMED:
            self.problems.append(f"line {number}: {reason}")


@dataclass(frozen=True, slots=True)
class _PageLayout:
    """A page without its values: each line up to its value, or the whole of a line that has none."""

    prefixes: list[bytes]
    has_value: bytes
    fixed_bytes: int
    openmetrics: bool


class ExpositionParser:
    """Reads the pages of one target; keep one per target, because its memory is what makes it fast."""

    def __init__(self, *, max_series: int = MAX_SERIES) -> None:
        self.labels: list[labels.Labels] = []
        self.families: dict[str, FamilyMetadata] = {}
        # Counts the changes of `families`.
        self.families_version = 0
        self.epoch = 0
        self._max_series = max_series
        # The memory is cleared between pages (see parse); this bounds it within one enormous page.
        self._most_remembered = 3 * max_series + FORGET_SLACK
        self._known: dict[bytes, int] = {}
        self._handle_of: dict[labels.Labels, int] = {}
        # The series of a page share nearly all their labels, and labels are most of what a parser keeps.
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        # Within one page: the labels of a GPU are written in the same way for each of its metrics.
        self._bodies: dict[bytes, tuple[tuple[str, str], ...]] = {}
        self._comments: set[bytes] = set()
        # The exemplar that each series carried last, as it was written: most come again with every page.
        self._exemplars: dict[int, bytes] = {}
        self._last_handles: list[int] = []
        # Whether the page before had a series at several times: on the next page the times may be the same.
        self._has_repeats = False
        self._layout: _PageLayout | None = None
        # Whether the series of the page before were not yet found written in a way that cannot be laid out.
        self._may_lay_out = True

    def parse(self, page: bytes, *, openmetrics: bool = False) -> ExpositionPage:
        """Every readable sample of the page; CollectError if it has too many series or is cut short."""
        if 2 * len(self.labels) > 3 * len(self._last_handles) + 2 * FORGET_SLACK:
            self._forget()
        lines = page.split(b"\n")
        again = self._read_again(lines, len(page), openmetrics=openmetrics)
        if again is not None:
            return ExpositionPage(self._last_handles, again, self.epoch)
        reading = self._gather(lines, self._known, openmetrics=openmetrics)
        if openmetrics and page.rstrip(b"\r\n").rpartition(b"\n")[2] != b"# EOF":
            raise CollectError("the page is cut short: it does not end with `# EOF`")
        try:
            # Python reads 1_000 as a number; Prometheus does not. One search per page finds it.
            if b"_" in b" ".join(reading.tokens):
                raise ValueError
            values = array("d", map(float, reading.tokens))
        except ValueError:
            # Some value is not a number: read every line the careful way, which names the bad ones.
            exemplars = reading.exemplars
            reading = self._gather(lines, {}, openmetrics=openmetrics)
            reading.exemplars = exemplars
            values = array("d", map(float, reading.tokens))
        if reading.handles != self._last_handles or self._has_repeats:
            self._refuse_repeats(reading, values)
            self._layout, self._may_lay_out = None, True
        elif self._may_lay_out and not (reading.timestamps_ms or reading.bad_lines):
            self._layout = self._lay_out(lines, openmetrics=openmetrics)
            self._may_lay_out = self._layout is not None
        return ExpositionPage(
            self._last_handles,
            values,
            self.epoch,
            timestamps_ms=reading.timestamps_ms,
            bad_lines=reading.bad_lines,
            problems=tuple(reading.problems),
            exemplars=tuple(reading.exemplars),
        )

    def _read_again(self, lines: list[bytes], page_bytes: int, *, openmetrics: bool) -> array[float] | None:
        """The values of a page that differs from the one before in nothing else; None where it does or may."""
        layout = self._layout
        if layout is None or len(lines) != len(layout.prefixes) or openmetrics != layout.openmetrics:
            return None
        rests = list(map(bytes.removeprefix, lines, layout.prefixes))
        tokens = list(compress(rests, layout.has_value))
        rest_bytes, values = len(b"".join(rests)), b"\n".join([b"", *tokens])
        is_same = (
            # A line that begins otherwise is left whole, and then there are more bytes.
            rest_bytes + layout.fixed_bytes == page_bytes
            # The lines without a value have no rest, the others one that begins with a space.
            and rest_bytes + len(tokens) == len(values)
            and values.count(b"\n ") == len(tokens)
        )
        if not is_same or b"_" in values:
            return None
        try:
            return array("d", map(float, tokens))
        except ValueError:
            return None

    def _lay_out(self, lines: list[bytes], *, openmetrics: bool) -> _PageLayout | None:
        """What to expect of the next page; None if a line is written in an unusual way."""
        # The objects that are remembered anyway: a fleet has gigabytes of pages.
        spelt = {handle: series for series, handle in self._known.items()}
        comments = {line: line for line in self._comments}
        handles = iter(self._last_handles)
        prefixes, has_value = [], bytearray()
        for line in lines:
            is_sample = line not in comments and bool(line.strip())
            prefix = spelt.get(next(handles, -1), b"") if is_sample else comments.get(line, line)
            if is_sample and line.rpartition(b" ")[0] != prefix:
                return None
            prefixes.append(prefix)
            has_value.append(is_sample)
        return _PageLayout(prefixes, bytes(has_value), sum(map(len, prefixes)) + len(lines) - 1, openmetrics)

    def _gather(self, lines: list[bytes], remembered: dict[bytes, int], *, openmetrics: bool) -> _TextReading:
        """Handle and value token of each line; this loop is the hot path of the whole hub."""
        reading = _TextReading()
        add_handle, add_token, known = reading.handles.append, reading.tokens.append, remembered.get
        comments = self._comments
        for number, line in enumerate(lines, 1):
            series, _, token = line.rpartition(b" ")
            handle = known(series)
            if handle is not None:
                add_handle(handle)
                add_token(token)
            elif line not in comments:
                self._read_unknown(line, number, reading=reading, openmetrics=openmetrics)
        self._bodies.clear()
        if len(reading.handles) > self._max_series:
            self._refuse_size(lines)
        return reading

    def _read_unknown(self, line: bytes, number: int, *, reading: _TextReading, openmetrics: bool) -> None:
        """A line that is not remembered: blank, a comment, a new series, or one with a time or an exemplar."""
        text = line.strip(b" \t\r")
        if not text:
            return
        if text.startswith(b"#"):
            self._read_comment(line)
            return
        text, exemplar = self._without_exemplar(text) if openmetrics else (text, b"")
        try:
            handle, rest = self._split(text)
            if openmetrics and not exemplar:
                # foo_bucket{le="1"} 8 # {trace_id="a"} 0.67: what follows the sharp is an exemplar.
                rest, _, exemplar = rest.partition(b" # ")
            token, at_ms = _split_value(rest, openmetrics)
        except BadLine as bad:
            reading.complain(number, str(bad))
            return
        if at_ms is not None:
            reading.timestamps_ms[len(reading.handles)] = at_ms
        reading.handles.append(handle)
        reading.tokens.append(token)
        if exemplar:
            self._note_exemplar(handle, exemplar, number, reading=reading)
        series, _, last = line.rpartition(b" ")
        # Only a line that ends with its value is remembered: `a 1 1` ends with a time, `a 1 # {} 1` with an exemplar.
        if last.strip(b"\r") == token and at_ms is None and not (openmetrics and b" # " in series):
            self._known[series] = handle

    def _split(self, line: bytes) -> tuple[int, bytes]:
        """The handle of the line's series, and what follows it; two spellings of one label set share a handle."""
        end = line.rfind(b"}") + 1
        known = self._known.get(line[:end]) if end else None
        if known is not None:
            return known, line[end:]
        label_set, rest = self._read_series(line, end)
        if len(label_set.name) > MAX_LABEL_LENGTH:
            raise BadLine(f"the name has {len(label_set.name):,} characters, the limit is {MAX_LABEL_LENGTH:,}")
        handle = self._handle_of.setdefault(label_set, len(self.labels))
        if handle == len(self.labels):
            if handle > self._most_remembered:
                raise BadLine(f"{handle} different series are remembered already, the limit is {self._most_remembered}")
            label_set.pairs = tuple([self._pairs.setdefault(pair, pair) for pair in label_set.pairs])
            self.labels.append(label_set)
        self._known[line[: len(line) - len(rest)]] = handle
        return handle, rest

    def _read_series(self, line: bytes, end: int) -> tuple[labels.Labels, bytes]:
        """The label set a line begins with, and the rest of the line; `end` is where its last brace closes."""
        start = line.find(b"{")
        name, pairs = line[:start], self._bodies.get(line[start:end]) if start > 0 else None
        if pairs is not None and PLAIN_NAME.fullmatch(name):
            return labels.Labels.with_metric_name(name.decode(), pairs), line[end:]
        try:
            label_set, text = _read_series(line.decode())
        except UnicodeDecodeError as error:
            raise BadLine(f"is not UTF-8: {error.reason}") from error
        rest = text.encode()
        if start > 0:
            self._bodies[line[start : len(line) - len(rest)]] = label_set.pairs_without_name
        return label_set, rest

    def _without_exemplar(self, line: bytes) -> tuple[bytes, bytes]:
        """A line of a known series without its exemplar; other lines as they are, for a label may hold a sharp too."""
        head, sharp, exemplar = line.rpartition(b" # {")
        return (head, b"{" + exemplar) if sharp and head.rpartition(b" ")[0] in self._known else (line, b"")

    def _note_exemplar(self, handle: int, raw: bytes, number: int, *, reading: _TextReading) -> None:
        if self._exemplars.get(handle) == raw:
            return
        self._exemplars[handle] = raw
        try:
            label_set, rest = _read_labels(raw.decode(), {}, 0)
            token, at_ms = _split_value(rest.encode(), openmetrics=True)
        except (BadLine, UnicodeDecodeError) as bad:
            reading.complain(number, f"the sample is kept, its exemplar is not: {bad}")
            return
        reading.exemplars.append((handle, label_set, float(token), at_ms))

    def _read_comment(self, line: bytes) -> None:
        if len(self._comments) >= 2 * self._max_series:
            self._comments.clear()
        self._comments.add(line)
        match = COMMENT.match(line.decode("utf-8", "replace").strip())
        if match is None:
            return
        word, plain, quoted, text = match.groups()
        name = plain or _unquote(quoted)
        if name not in self.families and len(self.families) >= self._max_series:
            return
        known = self.families.get(name, FamilyMetadata())
        family = FamilyMetadata(
            type=text if word == "TYPE" else known.type,
            help=ESCAPE.sub(_unescape, text) if word == "HELP" else known.help,
            unit=text if word == "UNIT" else known.unit,
        )
        if family != self.families.get(name):
            self.families[name] = family
            self.families_version += 1

    def _refuse_repeats(self, reading: _TextReading, values: array[float]) -> None:
        """Keep the first of samples that name the same series and time; this handle list is then the current one."""
        self._has_repeats = len(set(reading.handles)) != len(reading.handles)
        if self._has_repeats:
            self._drop_repeats(reading, values)
        self._last_handles = reading.handles

    def _drop_repeats(self, reading: _TextReading, values: array[float]) -> None:
        seen: set[tuple[int, int | None]] = set()
        kept: list[int] = []
        for at, handle in enumerate(reading.handles):
            key = (handle, reading.timestamps_ms.get(at))
            if key in seen:
                reading.bad_lines += 1
                if len(reading.problems) < BAD_LINES_NAMED:
                    reading.problems.append(f"{quote(str(self.labels[handle]))} stands twice; the first is kept")
                continue
            seen.add(key)
            kept.append(at)
        times = reading.timestamps_ms
        reading.timestamps_ms = {place: times[at] for place, at in enumerate(kept) if at in times}
        reading.handles = [reading.handles[at] for at in kept]
        values[:] = array("d", [values[at] for at in kept])

    def _refuse_size(self, lines: list[bytes]) -> None:
        found = sum(1 for line in lines if line.strip() and not line.lstrip().startswith(b"#"))
        self._forget()
        raise CollectError(
            f"the page has {found} samples, the limit is {self._max_series}",
            now="Nothing of this page is kept",
            remedy="Raise the limit for this target, or drop metrics in the exporter",
        )

    def _forget(self) -> None:
        """Start anew when most remembered series are gone, as after months of pods coming and going."""
        self.epoch += 1
        self.labels = []
        self._known.clear()
        self._handle_of.clear()
        self._pairs.clear()
        self._comments.clear()
        self._exemplars.clear()
        self._last_handles = []
        self._layout = None


def _read_series(line: str) -> tuple[labels.Labels, str]:
    """The label set a line begins with, and the rest of the line."""
    if (match := NAME.match(line)) is not None:
        return _read_labels(line, {labels.METRIC_NAME: match[1]}, match.end())
    if (quoted := QUOTED_NAME.match(line)) is not None and quoted[1]:
        return _read_pairs(line, {labels.METRIC_NAME: _unquote(quoted[1])}, quoted.end())
    raise BadLine(f"no metric name in {quote(line)}")


def _read_labels(line: str, pairs: dict[str, str], at: int) -> tuple[labels.Labels, str]:
    """The labels in braces from a place on, together with those known, and the rest of the line."""
    if line[at : at + 1] != "{":
        return labels.Labels(pairs), line[at:]
    return _read_pairs(line, pairs, at + 1)


def _read_pairs(line: str, pairs: dict[str, str], at: int) -> tuple[labels.Labels, str]:
    """The labels from inside the braces on."""
    while (label := LABEL.match(line, at)) is not None:
        plain, quoted, value = label.groups()
        name = plain or _unquote(quoted)
        if not name or name in pairs:
            raise BadLine(f"label {quote(name)} stands twice" if name else "a label has no name")
        pairs[name] = _unquote(value)
        at = label.end()
        if len(value) > MAX_LABEL_LENGTH or len(name) > MAX_LABEL_LENGTH or len(pairs) > MAX_LABELS:
            raise BadLine(
                f"label {quote(name)} has {len(value):,} characters and is number {len(pairs)}; "
                f"the limits are {MAX_LABEL_LENGTH:,} characters and {MAX_LABELS} labels"
            )
    rest = line[at:].lstrip(" \t")
    if not rest.startswith("}"):
        raise BadLine(f"label list breaks off at {quote(rest)}")
    return labels.Labels(pairs), rest[1:]


def _split_value(rest: bytes, openmetrics: bool) -> tuple[bytes, int | None]:
    """Value and explicit time of what follows the series."""
    parts = rest.split()
    if len(parts) not in (1, 2):
        raise BadLine(f"expected a value and perhaps a time, found {quote(rest.decode('utf-8', 'replace').strip())}")
    if not FLOAT.fullmatch(parts[0]):
        raise BadLine(f"value {quote(parts[0].decode('utf-8', 'replace'))} is not a number")
    if len(parts) == 1:
        return parts[0], None
    try:
        at_ms = round(float(parts[1]) * 1000) if openmetrics else int(parts[1].decode("ascii"))
    except (ValueError, OverflowError) as error:
        raise BadLine(f"time {quote(parts[1].decode('utf-8', 'replace'))} is not a number") from error
    if at_ms.bit_length() > 63:
        raise BadLine(f"time {quote(parts[1].decode())} has more than 64 bits")
    return parts[0], at_ms


def _unquote(text: str) -> str:
    return ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)
