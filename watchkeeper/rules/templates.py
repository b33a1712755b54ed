"""Parse and expand templates in rule labels and annotations, a subset of Go's template language.

`parse_template` runs when a rule file is loaded and reports errors that do not depend on values. `Template.expand` runs
at each evaluation and never raises: as in Prometheus, the text of a failed template is `<error expanding template: …>`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from watchkeeper.rules import template_reader as reader
from watchkeeper.rules.template_functions import FUNCTIONS, TemplateError
from watchkeeper.rules.template_printf import METHODS, Moment, Struct, format_value

Query: TypeAlias = Callable[[str], Sequence[Mapping[str, Any]]]
Scope: TypeAlias = ChainMap[str, Any]
# Enough for a table of a thousand rows with some cells each; a template that includes itself twice would never end.
MAX_INCLUDES = 10_000


@dataclass(frozen=True, slots=True)
class TemplateContext:
    """The values for one expansion; `query` returns rows of `{"Labels": …, "Value": …}`."""

    labels: Mapping[str, str]
    value: float
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""
    query: Query | None = None


@dataclass(frozen=True, slots=True)
class Template:
    text: str
    parts: reader.Parts
    templates_by_name: Mapping[str, reader.Parts] = field(default_factory=dict)

    def expand(self, context: TemplateContext) -> str:
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        labels, external_url = context.labels, context.external_url
        root = Struct(
            Labels=labels, ExternalLabels=context.external_labels, ExternalURL=external_url, Value=context.value
        )
        variables: dict[str, Any] = {"$": root, "$labels": labels, "$value": context.value}
        variables |= {"$externalLabels": context.external_labels, "$externalURL": external_url}
        try:
            return "".join(_Expansion(context, self.templates_by_name).expand(self.parts, ChainMap(variables), root))
        # Deliberately broad: an error in a template must not prevent the alert.
        except Exception as error:
            return f"<error expanding template: {error}>"


def parse_template(text: str) -> Template:
    """Parse a template; TemplateError if it is invalid."""
    return Template(text, *reader.read_template(text))


class _LoopExited(Exception):
    """Raised by `break` and `continue`, and handled by the enclosing `range`."""


class _Expansion:
    """One expansion of a template; `dot` is the value of `.`."""

    def __init__(self, context: TemplateContext, templates_by_name: Mapping[str, reader.Parts]) -> None:
        def run_query(expr: Any) -> Sequence[Struct]:
            if context.query is None:
                raise TemplateError("query is not available in this template")
            return [Struct(row) for row in context.query(expr)]

        self._templates_by_name = templates_by_name
        self._depth, self._include_count = 0, 0
        self._context_functions: Mapping[str, Callable[..., Any]] = {
            "query": run_query,
            "externalURL": lambda: context.external_url,
            "pathPrefix": lambda: urlsplit(context.external_url).path,
        }

    def expand(self, parts: reader.Parts, scope: Scope, dot: Any) -> Iterator[str]:
        for part in parts:
            if isinstance(part, str):
                yield part
            elif isinstance(part, reader.Print):
                yield format_value(self._evaluate(part.value, scope, dot))
            elif isinstance(part, reader.Assign):
                value = self._evaluate(part.value, scope, dot)
                # A new variable belongs to this block; an existing one is set where it was declared.
                owner = scope if part.is_new else next(block for block in scope.maps if part.variable in block)
                owner[part.variable] = value
            elif isinstance(part, reader.Include):
                yield from self._expand_include(part.name, self._evaluate(part.value, scope, dot))
            elif isinstance(part, reader.LoopExit):
                raise _LoopExited(part.word)
            else:
                yield from self._expand_branch(part, scope.new_child(), dot)

    def _expand_include(self, name: str, value: Any) -> Iterator[str]:
        if name not in self._templates_by_name:
            raise TemplateError(f'template "{name}" not defined')
        self._depth, self._include_count = self._depth + 1, self._include_count + 1
        if self._depth > reader.MAX_DEPTH or self._include_count > MAX_INCLUDES:
            raise TemplateError(f"more than {reader.MAX_DEPTH} nested includes or {MAX_INCLUDES} includes in total")
        yield from self.expand(self._templates_by_name[name], ChainMap({"$": value}), value)
        self._depth -= 1

    def _expand_branch(self, part: reader.Branch, scope: Scope, dot: Any) -> Iterator[str]:
        value = self._evaluate(part.value, scope, dot)
        if part.word == "range" and value:
            for key, item in sorted(value.items()) if isinstance(value, Mapping) else enumerate(value):
                # A single variable is the item; of two variables the first is the index.
                inner = scope.new_child(dict(zip(reversed(part.variables), (item, key), strict=False)))
                try:
                    yield from self.expand(part.then, inner, item)
                except _LoopExited as loop_exit:
                    if str(loop_exit) == "break":
                        return
            return
        scope.update(dict.fromkeys(part.variables, value))
        if not value:
            yield from self.expand(part.otherwise, scope, dot)
        else:
            yield from self.expand(part.then, scope, value if part.word == "with" else dot)

    def _evaluate(self, term: reader.Term, scope: Scope, dot: Any) -> Any:
        if isinstance(term, reader.Literal):
            return term.value
        if isinstance(term, reader.Path):
            return _get_fields(scope[term.variable] if term.variable else dot, term.fields)
        if isinstance(term, reader.FieldAccess):
            return _get_fields(self._evaluate(term.of, scope, dot), term.fields)
        if isinstance(term, reader.Method):
            args = [self._evaluate(arg, scope, dot) for arg in term.args]
            value = self._evaluate(term.of, scope, dot)
            if not isinstance(value, Moment) or term.name not in METHODS:
                raise TemplateError(f"{term.name} has arguments but cannot be invoked as function")
            return METHODS[term.name](value, *args)
        if term.function in reader.SHORT_CIRCUIT:
            return self._evaluate_logical(term, scope, dot)
        args = [self._evaluate(arg, scope, dot) for arg in term.args]
        return self._context_functions.get(term.function, FUNCTIONS.get(term.function, format_value))(*args)

    def _evaluate_logical(self, term: reader.FunctionUse, scope: Scope, dot: Any) -> Any:
        """The first value that decides an `and` or an `or`; later arguments are not evaluated."""
        if not term.args:
            raise TemplateError(f"wrong number of args for {term.function}: want at least 1 got 0")
        value = None
        for arg in term.args:
            value = self._evaluate(arg, scope, dot)
            if bool(value) is (term.function == "or"):
                break
        return value


def _get_fields(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if isinstance(value, Moment) and name in METHODS:
            value = METHODS[name](value)
            continue
        if not isinstance(value, Mapping) or (isinstance(value, Struct) and name not in value):
            raise TemplateError(f"can't evaluate field {name}")
        # As with Prometheus' `missingkey=zero`, a missing label is empty.
        value = value.get(name, "")
    return value
