"""The part of Go's template language that rule labels and annotations use.

`parse` runs when a rule file is loaded and finds every mistake that can be seen without a value:
unknown functions, undefined variables, a missing `end`. `Template.expand` runs at each evaluation
and never raises: like Prometheus, it puts `<error expanding template: …>` where the text would be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from watchkeeper.rules.template_functions import FUNCTIONS, QUERY, TemplateError, is_true, show

# {{- $labels.gpu -}}, from a `{{` to the next `}}`, which `_actions` finds: a pattern that looks for the end of each of
# 100,000 that have none would keep the hub for minutes.
ACTION = re.compile(r"\{\{(-(?=\s))?(.*?)((?<=\s)-)?\}\}", re.DOTALL)
TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
    | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
    | (?P<path>(?:\$\w*)?(?:\.\w+)+|\$\w*|\.)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>:=|[|()])
    )""",
    re.VERBOSE,
)
KEYWORDS = frozenset({"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"})
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "nil": None}
# What Prometheus defines before each template, besides `$` for everything.
VARIABLES = ("$", "$labels", "$value", "$externalLabels", "$externalURL")
# Deeper than any annotation for people; keeps a hostile rule file from exhausting the stack.
MAX_DEPTH = 30


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Path:
    """`$labels.x` or `.Value`: a variable ('' is the dot), and fields below it."""

    variable: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Print:
    value: Term


@dataclass(frozen=True, slots=True)
class Assign:
    variable: str
    value: Term


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`: the word, its value, and the two bodies."""

    word: str
    value: Term
    then: tuple[Part, ...]
    otherwise: tuple[Part, ...]


Term: TypeAlias = Literal | Path | Call
Part: TypeAlias = str | Print | Assign | Branch
Query: TypeAlias = Callable[[str], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Context:
    """What one expansion may use; `query` answers rows of `{"Labels": …, "Value": …}`."""

    labels: Mapping[str, str]
    value: float
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    query: Query | None = None


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    parts: tuple[Part, ...]

    def expand(self, context: Context) -> str:
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        root = {
            "Labels": context.labels,
            "Value": context.value,
            "ExternalLabels": context.external_labels,
            "ExternalURL": context.external_url,
        }
        scope = {
            "$": root,
            "$labels": context.labels,
            "$value": context.value,
            "$externalLabels": context.external_labels,
            "$externalURL": context.external_url,
        }
        try:
            return "".join(_run(self.parts, scope, dot=root, query=context.query))
        # Deliberately broad: whatever a foreign template does wrong, the alert itself must still go out.
        except Exception as error:
            return f"<error expanding template: {error}>"


def parse(text: str) -> Template:
    """The template, or TemplateError with what is wrong in it."""
    reader = _Reader(_actions(text))
    parts = reader.body(set(VARIABLES), depth=0)
    if reader.stop is not None:
        raise TemplateError(f"unexpected {{{{{reader.stop}}}}}")
    return Template(text, parts)


def _actions(text: str) -> Iterator[tuple[bool, str]]:
    """Pieces in order: (False, plain text) and (True, inside of an action); trim marks are applied."""
    at, trim = 0, False
    while (start := text.find("{{", at)) >= 0 and text.find("}}", start + 2) >= 0:
        match = ACTION.match(text, start)
        assert match is not None
        plain = text[at : match.start()]
        plain = plain.lstrip() if trim else plain
        yield False, plain.rstrip() if match.group(1) else plain
        at, trim = match.end(), bool(match.group(3))
        inside = match.group(2).strip()
        if not (inside.startswith("/*") and inside.endswith("*/")):
            yield True, inside
    rest = text[at:]
    if "{{" in rest:
        raise TemplateError("`{{` has no matching `}}`")
    yield False, rest.lstrip() if trim else rest


class _Reader:
    """Turns pieces into parts; `stop` is the `else …` or `end` that ended the last body, None at the text's end."""

    def __init__(self, pieces: Iterator[tuple[bool, str]]) -> None:
        self.pieces = pieces
        self.stop: str | None = None

    def body(self, known: set[str], *, depth: int) -> tuple[Part, ...]:
        if depth > MAX_DEPTH:
            raise TemplateError(f"blocks are nested deeper than {MAX_DEPTH}")
        parts: list[Part] = []
        self.stop = None
        for is_action, text in self.pieces:
            word = text.split(None, 1)[0] if is_action and text else ""
            if not is_action:
                parts += [text] if text else []
            elif word in ("else", "end"):
                self.stop = text
                return tuple(parts)
            elif word in ("if", "with", "range"):
                parts.append(self.branch(text, set(known), depth=depth))
            else:
                parts.append(_statement(text, known))
        return tuple(parts)

    def branch(self, text: str, known: set[str], *, depth: int) -> Branch:
        word, *rest = text.split(None, 1)
        value = _Terms("".join(rest), known).whole()
        then = self.body(set(known), depth=depth + 1)
        otherwise: tuple[Part, ...] = ()
        if self.stop is not None and self.stop.startswith("else"):
            chained = self.stop.removeprefix("else").strip()
            if chained:
                otherwise = (self.branch(chained, set(known), depth=depth + 1),)
                return Branch(word, value, then, otherwise)
            otherwise = self.body(set(known), depth=depth + 1)
        if self.stop != "end":
            raise TemplateError(f"`{{{{{word}}}}}` has no `{{{{end}}}}`")
        self.stop = None
        return Branch(word, value, then, otherwise)


def _statement(text: str, known: set[str]) -> Part:
    if not text:
        raise TemplateError("`{{}}` is empty")
    match = re.match(r"(\$\w+)\s*:?=\s*(.*)\Z", text, re.DOTALL)
    if match is None:
        return Print(_Terms(text, known).whole())
    value = _Terms(match.group(2), known).whole()
    known.add(match.group(1))
    return Assign(match.group(1), value)


class _Terms:
    """Reads one pipeline: `$value | humanize`, `printf "%.1f" $value`, `first (query "up")`."""

    def __init__(self, text: str, known: set[str]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.known = known
        at, text = 0, text.strip()
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                raise TemplateError(f"cannot read `{text[at : at + 20]}`")
            self.tokens.append((match.lastgroup or "", match.group(match.lastgroup or 0)))
            at = match.end()

    def whole(self) -> Term:
        term = self.pipeline(depth=0)
        if self.tokens:
            raise TemplateError(f"unexpected `{self.tokens[0][1]}`")
        return term

    def pipeline(self, *, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise TemplateError(f"parentheses are nested deeper than {MAX_DEPTH}")
        term = self.command(depth=depth)
        while self.tokens and self.tokens[0] == ("mark", "|"):
            self.tokens.pop(0)
            step = self.command(depth=depth)
            if not isinstance(step, Call):
                raise TemplateError("only a function can stand after `|`")
            term = Call(step.function, (*step.args, term))
        return term

    def command(self, *, depth: int) -> Term:
        head = self.operand(depth=depth)
        args = []
        while self.tokens and self.tokens[0] not in (("mark", "|"), ("mark", ")")):
            args.append(self.operand(depth=depth))
        if not args:
            return head
        if not isinstance(head, Call) or head.args:
            raise TemplateError("a value cannot be given arguments; a function name must come first")
        return Call(head.function, tuple(args))

    def operand(self, *, depth: int) -> Term:
        kind, text = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "text":
            return Literal(text[1:-1] if text[0] == "`" else _unquote(text))
        if kind == "number":
            return Literal(float(text) if any(c in text for c in ".eE") else int(text))
        if kind == "path":
            variable, *fields = text.split(".")
            if variable and variable not in self.known:
                raise TemplateError(f"undefined variable {variable}")
            return Path(variable, tuple(name for name in fields if name))
        if kind == "word":
            return self._word(text)
        if text == "(":
            term = self.pipeline(depth=depth + 1)
            if not self.tokens or self.tokens.pop(0)[1] != ")":
                raise TemplateError("`(` has no matching `)`")
            return term
        raise TemplateError(f"unexpected `{text}`" if text else "a value is missing")

    def _word(self, text: str) -> Term:
        if text in CONSTANTS:
            return Literal(CONSTANTS[text])
        if text in KEYWORDS:
            raise TemplateError(f"`{text}` is not supported here")
        if text not in FUNCTIONS and text != QUERY:
            raise TemplateError(f'function "{text}" not defined')
        return Call(text, ())


def _unquote(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError as error:
        raise TemplateError(f"unknown escape in {text}") from error


def _run(parts: tuple[Part, ...], scope: dict[str, Any], *, dot: Any, query: Query | None) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Print):
            yield show(_value(part.value, scope, dot=dot, query=query))
        elif isinstance(part, Assign):
            scope[part.variable] = _value(part.value, scope, dot=dot, query=query)
        else:
            yield from _run_branch(part, scope, dot=dot, query=query)


def _run_branch(part: Branch, scope: dict[str, Any], *, dot: Any, query: Query | None) -> Iterator[str]:
    value = _value(part.value, scope, dot=dot, query=query)
    if not is_true(value):
        yield from _run(part.otherwise, scope, dot=dot, query=query)
    elif part.word == "range":
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _run(part.then, dict(scope), dot=item, query=query)
    else:
        yield from _run(part.then, scope, dot=value if part.word == "with" else dot, query=query)


def _value(term: Term, scope: Mapping[str, Any], *, dot: Any, query: Query | None) -> Any:
    if isinstance(term, Literal):
        return term.value
    if isinstance(term, Path):
        value = scope[term.variable] if term.variable else dot
        for name in term.fields:
            if not isinstance(value, Mapping):
                raise TemplateError(f"can't evaluate field {name}")
            # Like Prometheus' `missingkey=zero`: a label that is not there is the empty text.
            value = value.get(name, "")
        return value
    args = [_value(arg, scope, dot=dot, query=query) for arg in term.args]
    if term.function != QUERY:
        return FUNCTIONS[term.function](*args)
    if query is None:
        raise TemplateError("query is not available here")
    return query(*args)
