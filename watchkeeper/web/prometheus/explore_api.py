"""GET /api/explore/complete: completions at the cursor of a PromQL expression, with descriptions.

Functions and aggregations come from the parser; metrics, labels and values come from the engine. The console's Explore
page calls this at every pause in typing, so an answer is short and never reads samples.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.query.promql import functions
from watchkeeper.web.endpoint import QueryParam, get, parse_whole_number

MAX_COMPLETIONS = 40
MAX_QUERY_LENGTH = 64 * 1024
# Only names and values of recent series are offered; queries on older series still work.
RECENT_MS = 6 * 3_600_000
KEYWORDS = ("by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "and", "or", "unless")
DURATIONS = ("5m", "1m", "15m", "30m", "1h", "6h", "1d", "7d")
# Deliberately no pattern that ends with `$`: its search in 64 KiB of letters would block the hub for a minute.
LABEL_LETTERS = frozenset(string.ascii_letters + string.digits + "_")
NAME_LETTERS = LABEL_LETTERS | {":"}
OPERATORS = ("=~", "!~", "!=", "=")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Completion:
    word: str
    kind: str
    detail: str = ""


class CompletionList(TypedDict):
    kind: str
    begins: int
    ends: int
    words: list[Completion]


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What can be completed at the cursor: the kind, the part that is typed, and its metric and label."""

    kind: str
    typed: str
    metric: str = ""
    label: str = ""


def read_cursor(text: str) -> CursorContext:
    """Parse the text before the cursor; an open quote, brace or bracket decides what can be completed."""
    brace, quote = _find_open_brace(text)
    if brace is not None:
        metric = _trailing_name(text[:brace].rstrip())
        if quote is not None:
            return CursorContext("value", text[quote + 1 :], metric, _label_before_operator(text[brace + 1 : quote]))
        return CursorContext("label", _trailing_name(text[brace + 1 :]), metric)
    if text.count("[") > text.count("]"):
        return CursorContext("duration", text[text.rindex("[") + 1 :])
    if GROUPING.search(text):
        before = re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", text)
        metric = next((name for name in reversed(before) if ":" in name or "_" in name), "")
        return CursorContext("label", _trailing_name(text), metric)
    return CursorContext("name", _trailing_name(text))


def _trailing_name(text: str, letters: frozenset[str] = NAME_LETTERS) -> str:
    """The name at the end of a text; scanned from the end, so that a long text costs nothing."""
    start = len(text)
    while start and text[start - 1] in letters:
        start -= 1
    return text[start:].lstrip(string.digits)


def _label_before_operator(text: str) -> str:
    """The label before the matcher operator at the end of a text: the one whose value is being typed."""
    stripped = text.rstrip()
    operator = next((candidate for candidate in OPERATORS if stripped.endswith(candidate)), None)
    return "" if operator is None else _trailing_name(stripped.removesuffix(operator).rstrip(), LABEL_LETTERS)


def _find_open_brace(text: str) -> tuple[int | None, int | None]:
    """The positions of the brace and the quote that are still open, or None."""
    brace: int | None = None
    quote: int | None = None
    at = 0
    while at < len(text):
        letter = text[at]
        if quote is not None:
            if letter == "\\":
                at += 1
            elif letter == text[quote]:
                quote = None
        elif letter in "\"'`":
            quote = at
        elif letter == "{":
            brace = at
        elif letter == "}":
            brace = None
        at += 1
    return brace, quote if brace is not None else None


def rank_words(words: Iterable[str], typed: str) -> list[str]:
    """Words that start with the typed text, then words that contain it, sorted; without the typed word itself."""
    typed_lower = typed.lower()
    matching = [word for word in words if typed_lower in word.lower() and word != typed]
    return sorted(matching, key=lambda word: (not word.lower().startswith(typed_lower), word.lower()))[:MAX_COMPLETIONS]


class ExploreApi:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries

    @get(
        "/api/explore/complete",
        QueryParam("query", "The PromQL expression.", is_required=True),
        QueryParam("at", "Position of the cursor in characters. Default: the end of the expression.", int),
    )
    async def complete(self, request: Request) -> CompletionList:
        """Completions at the cursor of a PromQL expression."""
        text = request.query_params.get("query", "")
        at = parse_whole_number(request.query_params.get("at", str(len(text))))
        if at is None or len(text) > MAX_QUERY_LENGTH:
            problem = f"`at` must be a number, and `query` may have at most {MAX_QUERY_LENGTH:,} characters"
            raise HTTPException(400, problem)
        cursor = read_cursor(text[:at])
        try:
            words = await self._queries.run_for_user(lambda: self._complete(cursor))
        except WatchkeeperError as error:
            raise HTTPException(503, str(error)) from error
        return CompletionList(kind=cursor.kind, begins=at - len(cursor.typed), ends=at, words=words)

    def _complete(self, cursor: CursorContext) -> list[Completion]:
        engine, end = self._queries.engine, clock.to_ms(self._runtime.clock.now())
        if cursor.kind == "duration":
            return [Completion(word, "duration") for word in DURATIONS if word.startswith(cursor.typed)]
        selectors = [[Matcher("__name__", MatchOp.EQUAL, cursor.metric)]] if cursor.metric else []
        if cursor.kind == "label":
            names = [name for name in engine.label_names(selectors, end - RECENT_MS, end) if name != "__name__"]
            return [Completion(name, "label") for name in rank_words(names, cursor.typed)]
        if cursor.kind == "value":
            if not cursor.label:
                return []
            values = engine.label_values(cursor.label, selectors, start_ms=end - RECENT_MS, end_ms=end)
            return [Completion(value, "value") for value in rank_words(values, cursor.typed)]
        return self._complete_name(cursor.typed, end)

    def _complete_name(self, typed: str, end: int) -> list[Completion]:
        """At most eight functions and keywords that start with the typed text, then metrics; none before any text."""
        if not typed:
            return []
        engine = self._queries.engine
        metrics = engine.label_values("__name__", [], start_ms=end - RECENT_MS, end_ms=end)
        metadata = engine.metadata()
        language_words = [
            Completion(name, "function", f"({', '.join(kind.value for kind in functions.FUNCTIONS[name].args)})")
            for name in rank_words(functions.FUNCTIONS, typed)
        ]
        language_words += [Completion(name, "aggregation") for name in rank_words(functions.AGGREGATIONS, typed)]
        language_words += [Completion(name, "keyword") for name in rank_words(KEYWORDS, typed)]
        metric_names = [
            Completion(name, "metric", " · ".join(filter(None, metadata.get(name, ())[:2]))[:160])
            for name in rank_words(metrics, typed)
        ]
        starting = [word for word in language_words if word.word.startswith(typed.lower())]
        return [*starting[:8], *metric_names][:MAX_COMPLETIONS]
