"""Read YAML from files and answers, with a limit on its nesting.

PyYAML's C code recurses into nested lists without a limit: some ten thousand brackets crash the process. All YAML from
outside is read here, and every problem is a `yaml.YAMLError`.
"""

from __future__ import annotations

from typing import Any

import yaml

# Manifests of Kubernetes have about twenty levels.
MAX_DEPTH = 100


class _Loader(yaml.CSafeLoader):
    _depth = 0

    # The C code calls these two before and after each value.
    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels, the limit")
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self._depth -= 1
        super().ascend_resolver()


def load_all(text: str | bytes) -> list[Any]:
    """The values of all documents; yaml.YAMLError if the text is not valid YAML."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except ValueError as error:
        # For example, an impossible date.
        raise yaml.MarkedYAMLError(problem=str(error)) from error


def load(text: str | bytes) -> Any:
    """The value of the only document, None without a document; yaml.YAMLError if the text is not valid YAML."""
    documents = load_all(text)
    if len(documents) > 1:
        raise yaml.MarkedYAMLError(problem=f"expected one document, found {len(documents)}")
    return documents[0] if documents else None


def compose(text: str) -> yaml.Node | None:
    """The node tree of the only document, with line numbers; yaml.YAMLError if the text is not valid YAML."""
    root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return root
