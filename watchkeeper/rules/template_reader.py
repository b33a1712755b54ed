"""Parse a template into its parts: plain text, actions, variables, and blocks.

`templates` expands the parts. The parser reports every error that does not depend on a value: unknown functions,
undefined variables, a missing `end`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from watchkeeper.rules.template_functions import FUNCTIONS, TemplateError

# {{- $labels.gpu -}}. `_split_actions` finds the `{{` and checks for a `}}`: without that check the pattern needs
# minutes for 100,000 `{{` without `}}`.
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
LOOP_EXITS = ("break", "continue")
CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "nil": None}
# The variables that Prometheus defines for each template; `$` is the root.
VARIABLES = ("$", "$labels", "$value", "$externalLabels", "$externalURL")
# Fields of these are labels and numbers, which have no methods.
ROOTS = ("", *VARIABLES)
# Functions that need the context of an expansion; `Template.expand` provides them.
CONTEXT_FUNCTIONS = ("query", "externalURL", "pathPrefix")
SHORT_CIRCUIT = ("and", "or")
# Deeper than any real annotation; a malicious rule file must not exhaust the stack.
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
    """`(…).Value`: fields of the value of a pipeline."""

    of: Term
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """`(…).Format "2006"`: a method call with arguments on the value of a pipeline."""

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
    """`template "name" value`: expand a named template with the value as its dot."""

    name: str
    value: Term


@dataclass(frozen=True, slots=True)
class LoopExit:
    word: str


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`: the keyword, the variables that get the value, the value, and the two bodies."""

    word: str
    variables: tuple[str, ...]
    value: Term
    then: tuple[Part, ...]
    otherwise: tuple[Part, ...]


Term: TypeAlias = Literal | Path | FieldAccess | Method | FunctionUse
Part: TypeAlias = str | Print | Assign | Include | LoopExit | Branch
Parts: TypeAlias = tuple[Part, ...]


def read_template(text: str) -> tuple[Parts, Mapping[str, Parts]]:
    """Parse a template into its parts and its named templates; TemplateError if it is invalid."""
    reader = _TemplateReader(_split_actions(text))
    parts = reader.read_body(set(VARIABLES), depth=0)
    if reader.stop is not None:
        raise TemplateError(f"unexpected {{{{{reader.stop}}}}}")
    return parts, reader.templates_by_name


def _split_actions(text: str) -> Iterator[tuple[bool, str]]:
    """Split a template into (False, plain text) and (True, content of an action); trim markers are applied."""
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
    """Parse pieces into parts; `stop` is the `else …` or `end` after the last body, None at the end of the text."""

    def __init__(self, pieces: Iterator[tuple[bool, str]]) -> None:
        self.pieces = pieces
        self.stop: str | None = None
        self.ranges = 0
        self.templates_by_name: dict[str, Parts] = {}

    def read_body(self, variables: set[str], *, depth: int) -> tuple[Part, ...]:
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
                parts.append(self.read_branch(text, set(variables), depth=depth))
            elif word in ("define", "template", "block"):
                parts += self.read_named(word, text.removeprefix(word), variables, depth=depth)
            elif text in LOOP_EXITS:
                if not self.ranges:
                    raise TemplateError(f"{{{{{text}}}}} outside {{{{range}}}}")
                parts.append(LoopExit(text))
            else:
                parts.append(_read_statement(text, variables))
        return tuple(parts)

    def read_branch(self, text: str, known_variables: set[str], *, depth: int) -> Branch:
        word, *rest = text.split(None, 1)
        variables, value = _read_declaration(word, "".join(rest), known_variables)
        self.ranges += word == "range"
        then = self.read_body(set(known_variables), depth=depth + 1)
        self.ranges -= word == "range"
        otherwise: tuple[Part, ...] = ()
        if self.stop is not None and self.stop.startswith("else"):
            chained = self.stop.removeprefix("else").strip()
            if chained:
                otherwise = (self.read_branch(chained, set(known_variables), depth=depth + 1),)
                return Branch(word, variables, value, then, otherwise)
            otherwise = self.read_body(set(known_variables), depth=depth + 1)
        self.expect_end(word)
        return Branch(word, variables, value, then, otherwise)

    def expect_end(self, word: str) -> None:
        if self.stop != "end":
            raise TemplateError(f"`{{{{{word}}}}}` has no `{{{{end}}}}`")
        self.stop = None

    def read_named(self, word: str, text: str, variables: set[str], *, depth: int) -> list[Part]:
        """Parse `define` and `block`, which define a named template, and `template` and `block`, which include one."""
        name, value = _PipelineReader(text, variables).read_name_and_value()
        if word != "template":
            if word == "define" and (depth or value is not None):
                raise TemplateError("`define` needs a name and must be outside of all blocks")
            ranges, self.ranges = self.ranges, 0
            # A named template sees only its dot, no variables of the template that includes it.
            body = self.read_body({"$"}, depth=depth + 1)
            self.expect_end(word)
            if self.templates_by_name.setdefault(name, body) is not body:
                raise TemplateError(f'multiple definition of template "{name}"')
            self.ranges = ranges
        return [] if word == "define" else [Include(name, Literal(None) if value is None else value)]


def _read_declaration(word: str, text: str, known_variables: set[str]) -> tuple[tuple[str, ...], Term]:
    """Parse the variables that a branch declares, and its value."""
    match = DECLARATION.match(text)
    if match is None:
        return (), _PipelineReader(text, known_variables).read_whole()
    if match[2] and word != "range":
        raise TemplateError(f"`{word}` allows only one variable")
    value = _PipelineReader(match[4], known_variables).read_whole()
    variables = tuple(name for name in match.group(1, 2) if name)
    known_variables.update(variables)
    return variables, value


def _read_statement(text: str, variables: set[str]) -> Part:
    if not text:
        raise TemplateError("`{{}}` is empty")
    match = DECLARATION.match(text)
    if match is None:
        return Print(_PipelineReader(text, variables).read_whole())
    variable, second, is_new, rest = match.groups()
    if second:
        raise TemplateError("only `range` allows two variables")
    if not is_new and variable not in variables:
        raise TemplateError(f"undefined variable {variable}")
    value = _PipelineReader(rest, variables).read_whole()
    variables.add(variable)
    return Assign(variable, value, bool(is_new))


class _PipelineReader:
    """Parses one pipeline: `$value | humanize`, `printf "%.1f" $value`, `first (query "up")`."""

    def __init__(self, text: str, variables: set[str]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.variables = variables
        at, text = 0, text.strip()
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                raise TemplateError(f"cannot read `{text[at : at + 20]}`")
            self.tokens.append((match.lastgroup or "", match.group(match.lastgroup or 0)))
            at = match.end()

    def read_name_and_value(self) -> tuple[str, Term | None]:
        name = self.read_operand(depth=0)
        if not isinstance(name, Literal) or not isinstance(name.value, str):
            raise TemplateError('a template needs a quoted name, such as "rows"')
        return name.value, self.read_whole() if self.tokens else None

    def read_whole(self) -> Term:
        term = self.read_pipeline(depth=0)
        if self.tokens:
            raise TemplateError(f"unexpected `{self.tokens[0][1]}`")
        return term

    def read_pipeline(self, *, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise TemplateError(f"parentheses are nested deeper than {MAX_DEPTH}")
        term = self.read_command(depth=depth)
        while self.tokens and self.tokens[0] == ("mark", "|"):
            self.tokens.pop(0)
            step = self.read_command(depth=depth)
            if not isinstance(step, FunctionUse):
                raise TemplateError("only a function can follow `|`")
            term = FunctionUse(step.function, (*step.args, term))
        return term

    def read_command(self, *, depth: int) -> Term:
        head = self.read_operand(depth=depth)
        args = []
        while self.tokens and self.tokens[0] not in (("mark", "|"), ("mark", ")")):
            args.append(self.read_operand(depth=depth))
        if not args:
            return head
        if isinstance(head, FieldAccess) or (isinstance(head, Path) and head.fields and head.variable not in ROOTS):
            *fields, name = head.fields
            return Method(replace(head, fields=tuple(fields)), name, tuple(args))
        if not isinstance(head, FunctionUse) or head.args:
            raise TemplateError("only a function can have arguments; write its name first")
        return FunctionUse(head.function, tuple(args))

    def read_operand(self, *, depth: int) -> Term:
        kind, text = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "text":
            try:
                return Literal(text[1:-1] if text[0] == "`" else str(json.loads(text, strict=False)))
            except ValueError as error:
                raise TemplateError(f"unknown escape in {text}") from error
        if kind == "number":
            try:
                is_float = "x" not in text.lower() and any(letter in text for letter in ".eE")
                return Literal(float(text) if is_float else int(text, 16 if "x" in text.lower() else 10))
            except ValueError as error:
                raise TemplateError(f"cannot read `{text}`") from error
        if kind == "path":
            variable, *fields = text.split(".")
            if variable and variable not in self.variables:
                raise TemplateError(f"undefined variable {variable}")
            return Path(variable, tuple(name for name in fields if name))
        if kind == "word":
            if text in CONSTANTS:
                return Literal(CONSTANTS[text])
            if text in KEYWORDS:
                raise TemplateError(f"`{text}` is not supported")
            if text not in FUNCTIONS and text not in CONTEXT_FUNCTIONS and text not in SHORT_CIRCUIT:
                raise TemplateError(f'function "{text}" not defined')
            return FunctionUse(text, ())
        if text == "(":
            term = self.read_pipeline(depth=depth + 1)
            if not self.tokens or self.tokens.pop(0)[1] != ")":
                raise TemplateError("`(` has no matching `)`")
            if self.tokens and self.tokens[0][0] == "field":
                return FieldAccess(term, tuple(self.tokens.pop(0)[1].split(".")[1:]))
            return term
        raise TemplateError(f"unexpected `{text}`" if text else "a value is missing")
