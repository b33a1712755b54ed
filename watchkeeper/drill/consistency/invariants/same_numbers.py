"""One number has one value wherever it is shown: the rows of packs/consistency.csv.

Values are separated by ` = `, their terms by ` + `. A term is the name of an answer, ` > ` and keys, where `*` stands
for all elements, and then `len`, `sum` or `count`: `/api/nodes > nodes.*.state count up|short`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.catalogue import pack
from watchkeeper.drill.consistency.invariants.table import REGISTERED, Contradiction, Invariant, agree
from watchkeeper.drill.consistency.looks import Look


@dataclass(frozen=True, slots=True)
class SameNumber:
    id: str = pack.cell()
    sentence: str = pack.cell()
    tolerance: float = pack.cell(float)
    values: str = pack.cell()

    def check(self, look: Look, _: Look | None) -> Iterator[Contradiction]:
        values = {value: read_value(look, value) for value in self.values.split(" = ")}
        return agree(self.id.replace("-", " "), values, tolerance=self.tolerance)


def read_value(look: Look, value: str) -> float | None:
    """The sum of the terms; None if any of them is unknown."""
    terms = [read_term(look, term) for term in value.split(" + ")]
    return None if None in terms else sum(term for term in terms if term is not None)


def read_term(look: Look, term: str) -> float | None:
    answer, _, path = term.partition(" > ")
    if not path and answer.endswith(" len"):
        answer, path = answer.removesuffix(" len"), " len"
    keys, _, function = path.partition(" ")
    elements = find_elements([look.answers.get(answer)], [key for key in keys.split(".") if key])
    if look.answers.get(answer) in (None, {}) or (not elements and "*" not in keys):
        return None
    kind, _, choices = function.partition(" ")
    if "*" not in keys and kind in ("len", "count"):
        elements = find_elements(elements, ["*"])
    if kind == "len":
        return len(elements)
    if kind == "count":
        return sum(str(element) in choices.split("|") for element in elements)
    # One unknown part makes a sum unknown.
    return None if any(element is None for element in elements) else sum(map(float, elements))


def find_elements(values: list[Any], keys: list[str]) -> list[Any]:
    for key in keys:
        if key == "*":
            inner = [value.values() if isinstance(value, dict) else value or () for value in values]
            values = [element for elements in inner for element in elements]
        elif key.isdigit():
            values = [value[int(key)] for value in values if isinstance(value, list) and len(value) > int(key)]
        else:
            values = [value[key] for value in values if isinstance(value, dict) and key in value]
    return values


for row in pack.load("consistency.csv", pack.row_reader(SameNumber, "id", "sentence", "values")):
    REGISTERED.append(Invariant(row.id, "same_numbers", row.sentence, row.check))
