"""YAML that somebody else wrote, read with a limit on how deep it is nested.

PyYAML's C code calls itself for each list inside a list and looks at no limit: some ten thousand brackets end the whole
process. Whoever reads a file or an answer does it here, and has one error to catch.
"""

from __future__ import annotations

from typing import Any

import yaml

# Manifests of Kubernetes come to some twenty.
MOST_DEPTH = 100


class _Loader(yaml.CSafeLoader):
    _depth = 0

    # What the C code calls for each value, and after it.
    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"it is nested deeper than {MOST_DEPTH} lists and tables, the limit")
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self._depth -= 1
        super().ascend_resolver()


def load_all(text: str | bytes) -> list[Any]:
    """The values of all documents; yaml.YAMLError for what is none."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except ValueError as error:
        # Such as a date that no calendar has.
        raise yaml.MarkedYAMLError(problem=str(error)) from error


def load(text: str | bytes) -> Any:
    """The value of the one document, None where there is none; yaml.YAMLError for what is none."""
    found = load_all(text)
    if len(found) > 1:
        raise yaml.MarkedYAMLError(problem=f"it has {len(found)} documents, and one was expected")
    return found[0] if found else None


def compose(text: str) -> yaml.Node | None:
    """The tree of the one document with the lines of its parts; yaml.YAMLError for what is none."""
    found: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return found
