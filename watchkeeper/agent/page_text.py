"""Renders metric families of this node in the Prometheus text format, with the label `Hostname`.

`host_page`, `fabric_page` and `diag_page` call this; the agent joins their texts into one /metrics page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchkeeper.kit import own_metrics

# A series: family, labels, value.
Row = tuple[str, dict[str, str], float]


def render_families(rows: Iterable[Row], families: Mapping[str, str], hostname: str) -> str:
    """Render the rows in the order of `families` (name → help); names that end in `_total` are counters."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in rows:
        # Whole numbers in full: a 64-bit counter has more digits than a float.
        number = str(int(value)) if isinstance(value, int) else repr(float(value)).removesuffix(".0")
        label_text = format_labels({**labels, "Hostname": hostname})
        lines.setdefault(name, []).append(f"{name}{{{label_text}}} {number}\n")
    parts: list[str] = []
    for name, help in families.items():
        if name in lines:
            kind = "counter" if name.endswith("_total") else "gauge"
            parts += [f"# HELP {name} {help}.\n# TYPE {name} {kind}\n", *lines[name]]
    return "".join(parts)


def format_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{own_metrics.escape(value)}"' for name, value in labels.items())
