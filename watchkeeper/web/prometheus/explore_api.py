"""GET /api/explore/complete: what may stand at the cursor of a PromQL expression, with what each word means.

Functions and aggregations are those that the parser knows; metrics, labels and values those that the engine has. The
console's page Explore asks at every pause in typing, so an answer is short and never reads a sample.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.query.promql import functions
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, parse_whole_number

MOST_WORDS = 40
LONGEST_QUERY = 64 * 1024
# Names and values of what was there lately; older series are still found when typed.
RECENT_MS = 6 * 3_600_000
KEYWORDS = ("by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "and", "or", "unless")
DURATIONS = ("5m", "1m", "15m", "30m", "1h", "6h", "1d", "7d")
# Not `$` behind a pattern: searched for in 64 KiB of letters, such a pattern keeps the whole hub waiting for a minute.
LABEL_LETTERS = frozenset(string.ascii_letters + string.digits + "_")
NAME_LETTERS = LABEL_LETTERS | {":"}
OPERATORS = ("=~", "!~", "!=", "=")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Completion:
    word: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CompletionList:
    kind: str
    begins: int
    ends: int
    words: list[Completion]


@dataclass(frozen=True, slots=True)
class CursorContext:
    """Where the cursor is: what kind of word fits, the part of it that is typed, and what surrounds it."""

    kind: str
    typed: str
    metric: str = ""
    label: str = ""


def read_cursor(text: str) -> CursorContext:
    """Read the text before the cursor; a quote or brace that is open decides what is wanted."""
    opened, quote = _open_brace(text)
    if opened is not None:
        metric = _word(text[:opened].rstrip())
        if quote is not None:
            return CursorContext("value", text[quote + 1 :], metric, _label_before(text[opened + 1 : quote]))
        return CursorContext("label", _word(text[opened + 1 :]), metric)
    if text.count("[") > text.count("]"):
        return CursorContext("duration", text[text.rindex("[") + 1 :])
    if GROUPING.search(text):
        before = re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", text)
        metric = next((name for name in reversed(before) if ":" in name or "_" in name), "")
        return CursorContext("label", _word(text), metric)
    return CursorContext("name", _word(text))


def _word(text: str, letters: frozenset[str] = NAME_LETTERS) -> str:
    """The name that a text ends with; read from its end, so that its length does not matter."""
    start = len(text)
    while start and text[start - 1] in letters:
        start -= 1
    return text[start:].lstrip(string.digits)


def _label_before(text: str) -> str:
    """The label whose value is being typed: what stands before the operator at the end."""
    ended = text.rstrip()
    operator = next((one for one in OPERATORS if ended.endswith(one)), None)
    return "" if operator is None else _word(ended.removesuffix(operator).rstrip(), LABEL_LETTERS)


def _open_brace(text: str) -> tuple[int | None, int | None]:
    """Where the brace and the quote that are still open begin."""
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
    """Words that begin with what is typed, then those that contain it, each in order; the word itself is not one."""
    low = typed.lower()
    fitting = [word for word in words if low in word.lower() and word != typed]
    return sorted(fitting, key=lambda word: (not word.lower().startswith(low), word.lower()))[:MOST_WORDS]


class ExploreApi:
    def __init__(self, runtime: Runtime, queries: Queries) -> None:
        self._runtime, self._queries = runtime, queries

    async def complete(self, request: Request) -> CompletionList:
        text = request.query_params.get("query", "")
        at = parse_whole_number(request.query_params.get("at", str(len(text))))
        if at is None or len(text) > LONGEST_QUERY:
            raise HTTPException(400, f"`at` must be a number, and the query at most {LONGEST_QUERY:,} characters long")
        here = read_cursor(text[:at])
        try:
            words = await asyncio.to_thread(self._words, here)
        except WatchkeeperError as error:
            raise HTTPException(503, str(error)) from error
        return CompletionList(kind=here.kind, begins=at - len(here.typed), ends=at, words=words)

    def _words(self, here: CursorContext) -> list[Completion]:
        engine, end = self._queries.engine, clock.to_ms(self._runtime.clock.now())
        if here.kind == "duration":
            return [Completion(word, "duration") for word in DURATIONS if word.startswith(here.typed)]
        about = [[Matcher("__name__", MatchOp.EQUAL, here.metric)]] if here.metric else []
        if here.kind == "label":
            names = engine.label_names(about, end - RECENT_MS, end)
            return [Completion(name, "label") for name in rank_words((n for n in names if n != "__name__"), here.typed)]
        if here.kind == "value":
            if not here.label:
                return []
            found = engine.label_values(here.label, about, start_ms=end - RECENT_MS, end_ms=end)
            return [Completion(value, "value") for value in rank_words(found, here.typed)]
        return self._names(here.typed, end)

    def _names(self, typed: str, end: int) -> list[Completion]:
        """Metrics first, because functions are few and known by heart sooner; nothing typed, nothing offered."""
        if not typed:
            return []
        engine = self._queries.engine
        metrics = engine.label_values("__name__", [], start_ms=end - RECENT_MS, end_ms=end)
        meaning = engine.metadata()
        own = [Completion(name, "function", _signature(name)) for name in rank_words(functions.FUNCTIONS, typed)]
        own += [Completion(name, "aggregation") for name in rank_words(functions.AGGREGATIONS, typed)]
        own += [Completion(name, "keyword") for name in rank_words(KEYWORDS, typed)]
        named = [Completion(name, "metric", _meaning(meaning, name)) for name in rank_words(metrics, typed)]
        low = typed.lower()
        own = [word for word in own if word.word.startswith(low)]
        return [*own[:8], *named][:MOST_WORDS]


def _meaning(known: Mapping[str, tuple[str, str, str]], name: str) -> str:
    kind, help_text, _ = known.get(name, ("", "", ""))
    return " · ".join(filter(None, (kind, help_text)))[:160]


def _signature(name: str) -> str:
    return f"({', '.join(kind.value for kind in functions.FUNCTIONS[name].args)})"


def endpoints(api: ExploreApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/explore/complete",
            Role.VIEWER,
            api.complete,
            summary="What may stand at the cursor of a PromQL expression",
            params=(
                QueryParam("query", "the expression", is_required=True),
                QueryParam("at", "the cursor; the end if none", int),
            ),
        )
    ]
