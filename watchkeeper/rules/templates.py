"""The part of Go's template language that rule labels and annotations use.

`parse` runs when a rule file is loaded and finds what `template_reader` can see without a value. `Template.expand` runs
at each evaluation and never raises: like Prometheus, it puts `<error expanding template: …>` where the text would be.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from watchkeeper.rules import template_reader
from watchkeeper.rules.template_functions import FUNCTIONS, TemplateError, is_true
from watchkeeper.rules.template_printf import Struct, show
from watchkeeper.rules.template_reader import (
    LAZY,
    MAX_DEPTH,
    Assign,
    Branch,
    FieldAccess,
    FunctionUse,
    Include,
    Literal,
    LoopExit,
    Method,
    Parts,
    Path,
    Print,
    Term,
)
from watchkeeper.rules.template_time import METHODS, Moment

Query: TypeAlias = Callable[[str], Sequence[Mapping[str, Any]]]
Scope: TypeAlias = ChainMap[str, Any]
# A table of a thousand rows with some cells each; what includes itself twice would never end.
MOST_INCLUDED = 10_000


@dataclass(frozen=True, slots=True)
class TemplateContext:
    """What one expansion may use; `query` answers rows of `{"Labels": …, "Value": …}`."""

    labels: Mapping[str, str]
    value: float
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    query: Query | None = None


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    parts: Parts
    defined: Mapping[str, Parts] = field(default_factory=dict)

    def expand(self, context: TemplateContext) -> str:
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        root = Struct(
            Labels=context.labels,
            ExternalLabels=context.external_labels,
            ExternalURL=context.external_url,
            Value=context.value,
        )
        variables: dict[str, Any] = {
            "$": root,
            "$labels": context.labels,
            "$value": context.value,
            "$externalLabels": context.external_labels,
            "$externalURL": context.external_url,
        }
        try:
            return "".join(_Expansion(context, self.defined).run(self.parts, ChainMap(variables), root))
        # Deliberately broad: whatever a foreign template does wrong, the alert itself must still go out.
        except Exception as error:
            return f"<error expanding template: {error}>"


def parse_template(text: str) -> Template:
    """The template, or TemplateError with what is wrong in it."""
    return Template(text, *template_reader.read(text))


class _Left(Exception):
    """`break` or `continue` on its way to the `range` that it means."""


class _Expansion:
    """One walk through a template; `dot` is what `.` means."""

    def __init__(self, context: TemplateContext, defined: Mapping[str, Parts]) -> None:
        self._query = context.query
        self._defined = defined
        self._depth, self._included = 0, 0
        self._own: Mapping[str, Callable[..., Any]] = {
            "query": self._rows,
            "externalURL": lambda: context.external_url,
            "pathPrefix": lambda: urlsplit(context.external_url).path,
        }

    def run(self, parts: Parts, scope: Scope, dot: Any) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, Print):
                yield show(self._value(part.value, scope, dot))
            elif isinstance(part, Assign):
                value = self._value(part.value, scope, dot)
                # A new variable is of this block; another one is where it was declared.
                owner = scope if part.is_new else next(each for each in scope.maps if part.variable in each)
                owner[part.variable] = value
            elif isinstance(part, Include):
                yield from self._include(part.name, self._value(part.value, scope, dot))
            elif isinstance(part, LoopExit):
                raise _Left(part.word)
            else:
                yield from self._branch(part, scope.new_child(), dot)

    def _include(self, name: str, value: Any) -> Iterator[str]:
        if name not in self._defined:
            raise TemplateError(f'template "{name}" not defined')
        self._depth, self._included = self._depth + 1, self._included + 1
        if self._depth > MAX_DEPTH or self._included > MOST_INCLUDED:
            raise TemplateError(f"templates include each other deeper than {MAX_DEPTH}, or {MOST_INCLUDED} times")
        yield from self.run(self._defined[name], ChainMap({"$": value}), value)
        self._depth -= 1

    def _branch(self, part: Branch, scope: Scope, dot: Any) -> Iterator[str]:
        value = self._value(part.value, scope, dot)
        if part.word == "range" and is_true(value):
            yield from self._range(part, scope, value)
            return
        scope.update(dict.fromkeys(part.variables, value))
        if not is_true(value):
            yield from self.run(part.otherwise, scope, dot)
        else:
            yield from self.run(part.then, scope, value if part.word == "with" else dot)

    def _range(self, part: Branch, scope: Scope, value: Any) -> Iterator[str]:
        for key, item in sorted(value.items()) if isinstance(value, Mapping) else enumerate(value):
            # One variable is the item; of two the first is its place.
            inner = scope.new_child(dict(zip(reversed(part.variables), (item, key), strict=False)))
            try:
                yield from self.run(part.then, inner, item)
            except _Left as left:
                if str(left) == "break":
                    return

    def _value(self, term: Term, scope: Scope, dot: Any) -> Any:
        if isinstance(term, Literal):
            return term.value
        if isinstance(term, Path):
            return _fields(scope[term.variable] if term.variable else dot, term.fields)
        if isinstance(term, FieldAccess):
            return _fields(self._value(term.of, scope, dot), term.fields)
        if isinstance(term, Method):
            args = [self._value(arg, scope, dot) for arg in term.args]
            return _asked(self._value(term.of, scope, dot), term.name, args)
        if term.function in LAZY:
            return self._first(term, scope, dot)
        args = [self._value(arg, scope, dot) for arg in term.args]
        return self._own.get(term.function, FUNCTIONS.get(term.function, show))(*args)

    def _first(self, term: FunctionUse, scope: Scope, dot: Any) -> Any:
        """The first value that decides an `and` or an `or`; what stands behind it is not looked at."""
        if not term.args:
            raise TemplateError(f"wrong number of args for {term.function}: want at least 1 got 0")
        value = None
        for arg in term.args:
            value = self._value(arg, scope, dot)
            if is_true(value) == (term.function == "or"):
                break
        return value

    def _rows(self, expr: Any) -> Sequence[Struct]:
        if self._query is None:
            raise TemplateError("query is not available here")
        return [Struct(row) for row in self._query(expr)]


def _asked(value: Any, name: str, args: Sequence[Any]) -> Any:
    if not isinstance(value, Moment) or name not in METHODS:
        raise TemplateError(f"{name} has arguments but cannot be invoked as function")
    return METHODS[name](value, *args)


def _fields(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if isinstance(value, Moment) and name in METHODS:
            value = METHODS[name](value)
            continue
        if not isinstance(value, Mapping) or (isinstance(value, Struct) and name not in value):
            raise TemplateError(f"can't evaluate field {name}")
        # Like Prometheus' `missingkey=zero`: a label that is not there is the empty text.
        value = value.get(name, "")
    return value
