"""A template's text, taken apart: plain text, what is printed, variables, and blocks.

`templates` expands the parts. Every mistake that can be seen without a value is found here: unknown functions,
undefined variables, a missing `end`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from watchkeeper.rules.template_functions import FUNCTIONS, TemplateError

# {{- $labels.gpu -}}, from a `{{` to the next `}}`, which `_actions` finds: a pattern that looks for the end of each of
# 100,000 that have none would keep the hub for minutes.
ACTION = re.compile(r"\{\{(-(?=\s))?(.*?)((?<=\s)-)?\}\}", re.DOTALL)
TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
    | (?P<number>[-+]?(?:0[xX][\da-fA-F_]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))(?![\w.])
    | (?P<field>(?<=\))(?:\.\w+)+)
    | (?P<path>(?:\$\w*)?(?:\.\w+)+|\$\w*|\.)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>:=|[|()])
    )""",
    re.VERBOSE,
)
# $x := 1, $x = 2; range also has $key, $value := …
DECLARATION = re.compile(r"(\$\w+)(?:\s*,\s*(\$\w+))?\s*(:?)=\s*(.*)\Z", re.DOTALL)
KEYWORDS = frozenset({"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"})
LEAVES = ("break", "continue")
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "nil": None}
# What Prometheus defines before each template, besides `$` for everything.
VARIABLES = ("$", "$labels", "$value", "$externalLabels", "$externalURL")
# Below these are labels and numbers, which have no methods.
ROOTS = ("", *VARIABLES)
# What needs the surroundings of an expansion; `Template.expand` supplies them.
OWN = ("query", "externalURL", "pathPrefix")
LAZY = ("and", "or")
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
class FieldAccess:
    """`(…).Value`: fields of what a pipeline gives."""

    of: Term
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """`(…).Format "2006"`: what a pipeline gives is asked with arguments."""

    of: Term
    name: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class FunctionUse:
    function: str
    args: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Print:
    value: Term


@dataclass(frozen=True, slots=True)
class Assign:
    variable: str
    value: Term
    is_new: bool


@dataclass(frozen=True, slots=True)
class Include:
    """`template "name" value`: what was defined under a name, with the value as its dot."""

    name: str
    value: Term


@dataclass(frozen=True, slots=True)
class LoopExit:
    """`break` or `continue`."""

    word: str


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`: the word, the variables that get its value, that value, and the two bodies."""

    word: str
    variables: tuple[str, ...]
    value: Term
    then: tuple[Part, ...]
    otherwise: tuple[Part, ...]


Term: TypeAlias = Literal | Path | FieldAccess | Method | FunctionUse
Part: TypeAlias = str | Print | Assign | Include | LoopExit | Branch
Parts: TypeAlias = tuple[Part, ...]


def read(text: str) -> tuple[Parts, Mapping[str, Parts]]:
    """The parts of a template and what it defines by name, or TemplateError with what is wrong in it."""
    reader = _TemplateReader(_actions(text))
    parts = reader.body(set(VARIABLES), depth=0)
    if reader.stop is not None:
        raise TemplateError(f"unexpected {{{{{reader.stop}}}}}")
    return parts, reader.defined


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


class _TemplateReader:
    """Turns pieces into parts; `stop` is the `else …` or `end` that ended the last body, None at the text's end."""

    def __init__(self, pieces: Iterator[tuple[bool, str]]) -> None:
        self.pieces = pieces
        self.stop: str | None = None
        self.ranges = 0
        self.defined: dict[str, Parts] = {}

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
            elif word in ("define", "template", "block"):
                parts += self.named(word, text.removeprefix(word), known, depth=depth)
            elif text in LEAVES:
                parts.append(self.leave(text))
            else:
                parts.append(_statement(text, known))
        return tuple(parts)

    def branch(self, text: str, known: set[str], *, depth: int) -> Branch:
        word, *rest = text.split(None, 1)
        variables, value = _declared(word, "".join(rest), known)
        self.ranges += word == "range"
        then = self.body(set(known), depth=depth + 1)
        self.ranges -= word == "range"
        otherwise: tuple[Part, ...] = ()
        if self.stop is not None and self.stop.startswith("else"):
            chained = self.stop.removeprefix("else").strip()
            if chained:
                otherwise = (self.branch(chained, set(known), depth=depth + 1),)
                return Branch(word, variables, value, then, otherwise)
            otherwise = self.body(set(known), depth=depth + 1)
        if self.stop != "end":
            raise TemplateError(f"`{{{{{word}}}}}` has no `{{{{end}}}}`")
        self.stop = None
        return Branch(word, variables, value, then, otherwise)

    def named(self, word: str, text: str, known: set[str], *, depth: int) -> list[Part]:
        """`define` and `block` keep a body under a name; `template` and `block` put one here."""
        name, value = _Terms(text, known).named()
        if word != "template":
            if word == "define" and (depth or value is not None):
                raise TemplateError("`define` takes a name, and stands outside of all blocks")
            ranges, self.ranges = self.ranges, 0
            # What is defined sees nothing of the place where it is put but its own dot.
            body = self.body({"$"}, depth=depth + 1)
            if self.stop != "end":
                raise TemplateError(f"`{{{{{word}}}}}` has no `{{{{end}}}}`")
            if self.defined.setdefault(name, body) is not body:
                raise TemplateError(f'multiple definition of template "{name}"')
            self.stop, self.ranges = None, ranges
        return [] if word == "define" else [Include(name, Literal(None) if value is None else value)]

    def leave(self, word: str) -> LoopExit:
        if not self.ranges:
            raise TemplateError(f"{{{{{word}}}}} outside {{{{range}}}}")
        return LoopExit(word)


def _declared(word: str, text: str, known: set[str]) -> tuple[tuple[str, ...], Term]:
    """The variables that a branch declares, which are known from here on, and its value."""
    match = DECLARATION.match(text)
    if match is None:
        return (), _Terms(text, known).whole()
    if match[2] and word != "range":
        raise TemplateError(f"`{word}` takes one variable")
    value = _Terms(match[4], known).whole()
    variables = tuple(name for name in match.group(1, 2) if name)
    known.update(variables)
    return variables, value


def _statement(text: str, known: set[str]) -> Part:
    if not text:
        raise TemplateError("`{{}}` is empty")
    match = DECLARATION.match(text)
    if match is None:
        return Print(_Terms(text, known).whole())
    variable, second, is_new, rest = match.groups()
    if second:
        raise TemplateError("only `range` takes two variables")
    if not is_new and variable not in known:
        raise TemplateError(f"undefined variable {variable}")
    value = _Terms(rest, known).whole()
    known.add(variable)
    return Assign(variable, value, bool(is_new))


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

    def named(self) -> tuple[str, Term | None]:
        """A name in quotes, and a value where there is one."""
        name = self.operand(depth=0)
        if not isinstance(name, Literal) or not isinstance(name.value, str):
            raise TemplateError('a template has a name in quotes, such as "rows"')
        return name.value, self.whole() if self.tokens else None

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
            if not isinstance(step, FunctionUse):
                raise TemplateError("only a function can stand after `|`")
            term = FunctionUse(step.function, (*step.args, term))
        return term

    def command(self, *, depth: int) -> Term:
        head = self.operand(depth=depth)
        args = []
        while self.tokens and self.tokens[0] not in (("mark", "|"), ("mark", ")")):
            args.append(self.operand(depth=depth))
        if not args:
            return head
        if isinstance(head, FieldAccess) or (isinstance(head, Path) and head.fields and head.variable not in ROOTS):
            *fields, name = head.fields
            inner = (
                FieldAccess(head.of, tuple(fields))
                if isinstance(head, FieldAccess)
                else Path(head.variable, tuple(fields))
            )
            return Method(inner, name, tuple(args))
        if not isinstance(head, FunctionUse) or head.args:
            raise TemplateError("a value cannot be given arguments; a function name must come first")
        return FunctionUse(head.function, tuple(args))

    def operand(self, *, depth: int) -> Term:
        kind, text = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "text":
            return Literal(text[1:-1] if text[0] == "`" else _unquote(text))
        if kind == "number":
            return Literal(_number(text))
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
            if self.tokens and self.tokens[0][0] == "field":
                return FieldAccess(term, tuple(self.tokens.pop(0)[1].split(".")[1:]))
            return term
        raise TemplateError(f"unexpected `{text}`" if text else "a value is missing")

    def _word(self, text: str) -> Term:
        if text in CONSTANTS:
            return Literal(CONSTANTS[text])
        if text in KEYWORDS:
            raise TemplateError(f"`{text}` is not supported here")
        if text not in FUNCTIONS and text not in OWN and text not in LAZY:
            raise TemplateError(f'function "{text}" not defined')
        return FunctionUse(text, ())


def _unquote(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError as error:
        raise TemplateError(f"unknown escape in {text}") from error


def _number(text: str) -> int | float:
    try:
        if "x" in text.lower():
            return int(text, 16)
        return float(text) if any(c in text for c in ".eE") else int(text)
    except ValueError as error:
        raise TemplateError(f"cannot read `{text}`") from error
