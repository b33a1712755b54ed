"""Parse Prometheus text (0.0.4, and OpenMetrics 1.0 with exemplars) into handles and values.

Each target has its own parser, because only the values change between its pages. A page with the same lines as the page
before is compared with the cache in one step; otherwise each cached line costs one split and one lookup.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress

from watchkeeper.errors import CollectError, quote
from watchkeeper.model import labels
from watchkeeper.model.histograms import Histogram

# A full dcgm-exporter page of an 8-GPU node has about 500 series. Of kube-state-metrics, Watchkeeper's rules read about
# 60,000 series for 20,000 GPUs.
MAX_SERIES = 250_000
# Problems that are listed per page; further bad lines are only counted.
MAX_PROBLEMS = 5
# A longer label value is a stack trace or a file, and would be kept once for each series.
MAX_LABEL_LENGTH = 4096
MAX_LABELS = 64
# The cache is reset when the series that are no longer on the page exceed half of the current series by this number.
# Each takes about 1 kB per target; the page of a node has 500.
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
    """One line of a page is invalid; the other lines are kept."""


@dataclass(frozen=True, slots=True)
class FamilyMetadata:
    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ExpositionPage:
    """One page: `values[i]` belongs to the series `parser.labels[handles[i]]`.

    `handles` is the same list object as on the page before while the series stay the same.
    `timestamps_ms` maps positions to explicit timestamps and is empty for most exporters. When `epoch` changes, the
    parser was reset and every handle has a new meaning.
    """

    handles: list[int]
    values: array[float]
    epoch: int
    timestamps_ms: Mapping[int, int] = field(default_factory=dict)
    bad_lines: int = 0
    problems: tuple[str, ...] = ()
    # Exemplars that were not on the page before, by the handle of their series; timestamp None is the scrape time.
    exemplars: tuple[tuple[int, labels.Labels, float, int | None], ...] = ()
    # Native histograms by the handle of their series, which is not in `handles`; text pages have none.
    histograms: tuple[tuple[int, Histogram, int | None], ...] = ()


@dataclass(slots=True)
class ParsedPage:
    """The samples and problems of a page so far, in any format."""

    handles: list[int] = field(default_factory=list)
    timestamps_ms: dict[int, int] = field(default_factory=dict)
    bad_lines: int = 0
    problems: list[str] = field(default_factory=list)
    exemplars: list[tuple[int, labels.Labels, float, int | None]] = field(default_factory=list)
    histograms: list[tuple[int, Histogram, int | None]] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        self.bad_lines += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def finish(self, handles: list[int], values: array[float], epoch: int) -> ExpositionPage:
        return ExpositionPage(
            handles,
            values,
            epoch,
            timestamps_ms=self.timestamps_ms,
            bad_lines=self.bad_lines,
            problems=tuple(self.problems),
            exemplars=tuple(self.exemplars),
            histograms=tuple(self.histograms),
        )


@dataclass(slots=True)
class _ParsedText(ParsedPage):
    tokens: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PageLayout:
    """A page without its values: each line up to its value, or the whole line if it has no value."""

    prefixes: list[bytes]
    has_value: bytes
    fixed_bytes: int
    is_openmetrics: bool


class SeriesCache:
    """The series and metrics of one target, in any format. When `epoch` changes, every handle has a new meaning."""

    def __init__(self, max_series: int) -> None:
        self.labels: list[labels.Labels] = []
        self.families: dict[str, FamilyMetadata] = {}
        # Increases with each change of `families`.
        self.families_version = 0
        self.epoch = 0
        self._max_series = max_series
        # The series of a page share nearly all their labels, and labels take most of a parser's memory.
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._last_handles: list[int] = []

    def _add_series(self, series: labels.Labels) -> int:
        series.pairs = tuple([self._pairs.setdefault(pair, pair) for pair in series.pairs])
        self.labels.append(series)
        return len(self.labels) - 1

    def _add_family(self, name: str, family: FamilyMetadata) -> None:
        if family != self.families.get(name) and (name in self.families or len(self.families) < self._max_series):
            self.families[name] = family
            self.families_version += 1

    def _reset(self) -> None:
        """Clear the cache, when most cached series are no longer exposed, for example after months of pod churn."""
        self.epoch += 1
        self.labels = []
        self._pairs.clear()
        self._last_handles = []

    def _refuse_page(self, samples: str) -> None:
        self._reset()
        raise CollectError(
            f"the page has {samples}, the limit is {self._max_series}",
            now="The whole page was dropped",
            remedy="Raise the limit for this target, or drop metrics in the exporter",
        )


def check_label(name: str, value: str, *, number: int) -> None:
    """BadLine if a label, which is the `number`th of its series, exceeds a limit."""
    if len(value) > MAX_LABEL_LENGTH or len(name) > MAX_LABEL_LENGTH or number > MAX_LABELS:
        raise BadLine(
            f"label {quote(name)} has {len(value):,} characters and is number {number}; "
            f"the limits are {MAX_LABEL_LENGTH:,} characters and {MAX_LABELS} labels"
        )


class ExpositionParser(SeriesCache):
    """Parses the pages of one target. Keep one per target: its cache makes it fast."""

    def __init__(self, *, max_series: int = MAX_SERIES) -> None:
        super().__init__(max_series)
        # The cache is reset between pages (see parse); this limits it within one very large page.
        self._max_remembered = 3 * max_series + FORGET_SLACK
        self._handle_of_prefix: dict[bytes, int] = {}
        self._handle_of_labels: dict[labels.Labels, int] = {}
        # Within one page: the label text of a GPU is the same for each of its metrics.
        self._label_bodies: dict[bytes, tuple[tuple[str, str], ...]] = {}
        self._comments: set[bytes] = set()
        # The raw text of the last exemplar of each series: most exemplars repeat on every page.
        self._exemplars: dict[int, bytes] = {}
        # Whether the page before had a series more than once: on the next page its timestamps may be equal.
        self._has_repeats = False
        self._layout: _PageLayout | None = None
        # False if building a layout failed for the current series.
        self._may_have_layout = True

    def parse(self, page: bytes, *, openmetrics: bool = False) -> ExpositionPage:
        """Parse every valid sample of the page; CollectError if it has too many series or is truncated."""
        if 2 * len(self.labels) > 3 * len(self._last_handles) + 2 * FORGET_SLACK:
            self._reset()
        lines = page.split(b"\n")
        repeated_values = self._read_same_layout(lines, len(page), openmetrics=openmetrics)
        if repeated_values is not None:
            return ExpositionPage(self._last_handles, repeated_values, self.epoch)
        parsed = self._parse_lines(lines, self._handle_of_prefix, openmetrics=openmetrics)
        if openmetrics and page.rstrip(b"\r\n").rpartition(b"\n")[2] != b"# EOF":
            raise CollectError("the page is truncated: it does not end with `# EOF`")
        try:
            # Python reads 1_000 as a number; Prometheus does not. One search per page finds it.
            if b"_" in b" ".join(parsed.tokens):
                raise ValueError
            values = array("d", map(float, parsed.tokens))
        except ValueError:
            # A value is not a number: parse every line again without the cache, which reports the bad lines.
            exemplars = parsed.exemplars
            parsed = self._parse_lines(lines, {}, openmetrics=openmetrics)
            parsed.exemplars = exemplars
            values = array("d", map(float, parsed.tokens))
        if parsed.handles != self._last_handles or self._has_repeats:
            self._has_repeats = len(set(parsed.handles)) != len(parsed.handles)
            if self._has_repeats:
                self._drop_repeats(parsed, values)
            self._last_handles = parsed.handles
            self._layout, self._may_have_layout = None, True
        elif self._may_have_layout and not (parsed.timestamps_ms or parsed.bad_lines):
            self._layout = self._build_layout(lines, openmetrics=openmetrics)
            self._may_have_layout = self._layout is not None
        return parsed.finish(self._last_handles, values, self.epoch)

    def _read_same_layout(self, lines: list[bytes], page_bytes: int, *, openmetrics: bool) -> array[float] | None:
        """The values of a page that differs from the page before only in its values; None for other pages."""
        layout = self._layout
        if layout is None or len(lines) != len(layout.prefixes) or openmetrics != layout.is_openmetrics:
            return None
        rests = list(map(bytes.removeprefix, lines, layout.prefixes))
        tokens = list(compress(rests, layout.has_value))
        rest_bytes, values = len(b"".join(rests)), b"\n".join([b"", *tokens])
        is_same = (
            # A line with a different prefix stays whole, so that the sum is larger.
            rest_bytes + layout.fixed_bytes == page_bytes
            # Lines without a value have an empty rest; other rests start with a space.
            and rest_bytes + len(tokens) == len(values)
            and values.count(b"\n ") == len(tokens)
        )
        if not is_same or b"_" in values:
            return None
        try:
            return array("d", map(float, tokens))
        except ValueError:
            return None

    def _build_layout(self, lines: list[bytes], *, openmetrics: bool) -> _PageLayout | None:
        """The layout to expect of the next page; None if a line has unusual spacing."""
        # Reuse the cached objects to save memory: the pages of a fleet are gigabytes.
        prefix_of_handle = {handle: series for series, handle in self._handle_of_prefix.items()}
        comments = {line: line for line in self._comments}
        handles = iter(self._last_handles)
        prefixes, has_value = [], bytearray()
        for line in lines:
            is_sample = line not in comments and bool(line.strip())
            prefix = prefix_of_handle.get(next(handles, -1), b"") if is_sample else comments.get(line, line)
            if is_sample and line.rpartition(b" ")[0] != prefix:
                return None
            prefixes.append(prefix)
            has_value.append(is_sample)
        return _PageLayout(prefixes, bytes(has_value), sum(map(len, prefixes)) + len(lines) - 1, openmetrics)

    def _parse_lines(self, lines: list[bytes], handle_of_prefix: dict[bytes, int], *, openmetrics: bool) -> _ParsedText:
        """Collect the handle and value token of each line; this loop is the hot path of the hub."""
        parsed = _ParsedText()
        add_handle, add_token, find_handle = parsed.handles.append, parsed.tokens.append, handle_of_prefix.get
        comments = self._comments
        for line_number, line in enumerate(lines, 1):
            series, _, token = line.rpartition(b" ")
            handle = find_handle(series)
            if handle is not None:
                add_handle(handle)
                add_token(token)
            elif line not in comments:
                self._read_new_line(line, line_number, parsed=parsed, openmetrics=openmetrics)
        self._label_bodies.clear()
        if len(parsed.handles) > self._max_series:
            count = sum(1 for line in lines if line.strip() and not line.lstrip().startswith(b"#"))
            self._refuse_page(f"{count} samples")
        return parsed

    def _read_new_line(self, line: bytes, line_number: int, *, parsed: _ParsedText, openmetrics: bool) -> None:
        """Parse a line that is not cached: blank, a comment, a new series, or one with a timestamp or exemplar."""
        text = line.strip(b" \t\r")
        if not text:
            return
        if text.startswith(b"#"):
            self._read_comment(line)
            return
        text, exemplar = self._cut_exemplar(text) if openmetrics else (text, b"")
        try:
            handle, rest = self._split_series(text)
            if openmetrics and not exemplar:
                # foo_bucket{le="1"} 8 # {trace_id="a"} 0.67: an exemplar follows the `#`.
                rest, _, exemplar = rest.partition(b" # ")
            token, at_ms = _split_value(rest, openmetrics)
        except BadLine as error:
            parsed.add_problem(f"line {line_number}: {error}")
            return
        if at_ms is not None:
            parsed.timestamps_ms[len(parsed.handles)] = at_ms
        parsed.handles.append(handle)
        parsed.tokens.append(token)
        if exemplar:
            self._add_exemplar(handle, exemplar, line_number, parsed=parsed)
        series, _, last_token = line.rpartition(b" ")
        # Only a line that ends with its value is cached: `a 1 1` ends with a timestamp, `a 1 # {} 1` with an exemplar.
        if last_token.strip(b"\r") == token and at_ms is None and not (openmetrics and b" # " in series):
            self._handle_of_prefix[series] = handle

    def _split_series(self, line: bytes) -> tuple[int, bytes]:
        """The handle of the line's series, and the rest of the line; two spellings of a label set share a handle."""
        end = line.rfind(b"}") + 1
        handle = self._handle_of_prefix.get(line[:end]) if end else None
        if handle is not None:
            return handle, line[end:]
        label_set, rest = self._read_series(line, end)
        if len(label_set.name) > MAX_LABEL_LENGTH:
            raise BadLine(f"the name has {len(label_set.name):,} characters, the limit is {MAX_LABEL_LENGTH:,}")
        handle = self._handle_of_labels.setdefault(label_set, len(self.labels))
        if handle == len(self.labels):
            if handle > self._max_remembered:
                raise BadLine(f"{handle} different series on this page, the limit is {self._max_remembered}")
            self._add_series(label_set)
        self._handle_of_prefix[line[: len(line) - len(rest)]] = handle
        return handle, rest

    def _read_series(self, line: bytes, end: int) -> tuple[labels.Labels, bytes]:
        """The label set at the start of a line, and the rest of the line; `end` is after the last closing brace."""
        start = line.find(b"{")
        name, pairs = line[:start], self._label_bodies.get(line[start:end]) if start > 0 else None
        if pairs is not None and PLAIN_NAME.fullmatch(name):
            return labels.Labels.with_metric_name(name.decode(), pairs), line[end:]
        try:
            label_set, text = _read_series(line.decode())
        except UnicodeDecodeError as error:
            raise BadLine(f"is not UTF-8: {error.reason}") from error
        rest = text.encode()
        if start > 0:
            self._label_bodies[line[start : len(line) - len(rest)]] = label_set.pairs_without_name
        return label_set, rest

    def _cut_exemplar(self, line: bytes) -> tuple[bytes, bytes]:
        """Split the exemplar from a line of a cached series; not from others, whose labels may contain ` # {`."""
        head, sharp, exemplar = line.rpartition(b" # {")
        return (head, b"{" + exemplar) if sharp and head.rpartition(b" ")[0] in self._handle_of_prefix else (line, b"")

    def _add_exemplar(self, handle: int, raw: bytes, line_number: int, *, parsed: _ParsedText) -> None:
        if self._exemplars.get(handle) == raw:
            return
        self._exemplars[handle] = raw
        try:
            label_set, rest = _read_labels(raw.decode(), {}, 0)
            token, at_ms = _split_value(rest.encode(), openmetrics=True)
        except (BadLine, UnicodeDecodeError) as error:
            parsed.add_problem(f"line {line_number}: the exemplar was dropped, its sample was kept: {error}")
            return
        parsed.exemplars.append((handle, label_set, float(token), at_ms))

    def _read_comment(self, line: bytes) -> None:
        if len(self._comments) >= 2 * self._max_series:
            self._comments.clear()
        self._comments.add(line)
        match = COMMENT.match(line.decode("utf-8", "replace").strip())
        if match is None:
            return
        keyword, plain_name, quoted_name, text = match.groups()
        name = plain_name or _unquote(quoted_name)
        value = ESCAPE.sub(_unescape, text) if keyword == "HELP" else text
        self._add_family(name, replace(self.families.get(name, FamilyMetadata()), **{keyword.lower(): value}))

    def _drop_repeats(self, parsed: _ParsedText, values: array[float]) -> None:
        """Drop duplicates of a series and timestamp, except the first."""
        sample_keys: set[tuple[int, int | None]] = set()
        kept_positions: list[int] = []
        for position, handle in enumerate(parsed.handles):
            key = (handle, parsed.timestamps_ms.get(position))
            if key in sample_keys:
                parsed.add_problem(f"{quote(str(self.labels[handle]))} is a duplicate; the first sample was kept")
                continue
            sample_keys.add(key)
            kept_positions.append(position)
        times = parsed.timestamps_ms
        parsed.timestamps_ms = {new: times[old] for new, old in enumerate(kept_positions) if old in times}
        parsed.handles = [parsed.handles[position] for position in kept_positions]
        values[:] = array("d", [values[position] for position in kept_positions])

    def _reset(self) -> None:
        super()._reset()
        self._handle_of_prefix.clear()
        self._handle_of_labels.clear()
        self._comments.clear()
        self._exemplars.clear()
        self._layout = None


def _read_series(line: str) -> tuple[labels.Labels, str]:
    """The label set at the start of a line, and the rest of the line."""
    if (match := NAME.match(line)) is not None:
        return _read_labels(line, {labels.METRIC_NAME: match[1]}, match.end())
    if (quoted_name := QUOTED_NAME.match(line)) is not None and quoted_name[1]:
        return _read_pairs(line, {labels.METRIC_NAME: _unquote(quoted_name[1])}, quoted_name.end())
    raise BadLine(f"no metric name in {quote(line)}")


def _read_labels(line: str, pairs: dict[str, str], position: int) -> tuple[labels.Labels, str]:
    """The labels in braces at a position, merged with the given pairs, and the rest of the line."""
    if line[position : position + 1] != "{":
        return labels.Labels(pairs), line[position:]
    return _read_pairs(line, pairs, position + 1)


def _read_pairs(line: str, pairs: dict[str, str], position: int) -> tuple[labels.Labels, str]:
    """The labels after an opening brace, and the rest of the line."""
    while (label := LABEL.match(line, position)) is not None:
        plain_name, quoted_name, value = label.groups()
        name = plain_name or _unquote(quoted_name)
        if not name or name in pairs:
            raise BadLine(f"duplicate label {quote(name)}" if name else "a label has no name")
        pairs[name] = _unquote(value)
        position = label.end()
        check_label(name, value, number=len(pairs))
    rest = line[position:].lstrip(" \t")
    if not rest.startswith("}"):
        raise BadLine(f"invalid label list at {quote(rest)}")
    return labels.Labels(pairs), rest[1:]


def _split_value(rest: bytes, openmetrics: bool) -> tuple[bytes, int | None]:
    """The value and optional timestamp in the rest of a line."""
    parts = rest.split()
    if len(parts) not in (1, 2):
        raise BadLine(f"expected value and optional timestamp, got {quote(rest.decode('utf-8', 'replace').strip())}")
    if not FLOAT.fullmatch(parts[0]):
        raise BadLine(f"value {quote(parts[0].decode('utf-8', 'replace'))} is not a number")
    if len(parts) == 1:
        return parts[0], None
    try:
        at_ms = round(float(parts[1]) * 1000) if openmetrics else int(parts[1].decode("ascii"))
    except (ValueError, OverflowError) as error:
        raise BadLine(f"timestamp {quote(parts[1].decode('utf-8', 'replace'))} is not a number") from error
    if at_ms.bit_length() > 63:
        raise BadLine(f"timestamp {quote(parts[1].decode())} has more than 64 bits")
    return parts[0], at_ms


def _unquote(text: str) -> str:
    return ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)
