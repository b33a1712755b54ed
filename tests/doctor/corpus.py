"""How often the doctor is right on labelled cases: `python -m tests.doctor.corpus DIR [--json]`.

A case is a JSON file with `input`, `kind`, `confidence` and `truth` {root_cause, also_acceptable}. A truth of
`unknown` is met by an answer without findings, or by one that says unknown first.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.doctor.asking import ask

CONFIDENT = 0.5


@dataclass(frozen=True, slots=True)
class Result:
    case: str
    kind: str
    sureness: str
    accepted_causes: frozenset[str]
    got: tuple[tuple[str, float], ...]

    @property
    def is_negative(self) -> bool:
        return "unknown" in self.accepted_causes

    @property
    def is_right(self) -> bool:
        return (self.got[0][0] if self.got else "unknown") in self.accepted_causes

    @property
    def is_among_three(self) -> bool:
        return self.is_right or any(cause in self.accepted_causes for cause, _ in self.got[:3])

    @property
    def is_confidently_wrong(self) -> bool:
        return bool(self.got) and not self.is_right and self.got[0][1] >= CONFIDENT


def measure(folder: Path) -> Iterator[Result]:
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text())
        answer = ask(case["input"])
        accepted_causes = {case["truth"]["root_cause"], *case["truth"].get("also_acceptable", [])}
        got = tuple((finding.cause, finding.confidence) for finding in answer.findings)
        yield Result(case["id"], case["kind"], case["confidence"], frozenset(accepted_causes), got)


def summary(results: list[Result]) -> dict[str, object]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        for name in (
            "all",
            f"confidence {result.sureness}",
            f"kind {result.kind}",
            *["negatives"] * result.is_negative,
        ):
            groups[name].append(result)
    return {
        name: {
            "cases": len(cases),
            "top1": round(sum(result.is_right for result in cases) / len(cases), 3),
            "top3": round(sum(result.is_among_three for result in cases) / len(cases), 3),
            "confidently_wrong": sum(result.is_confidently_wrong for result in cases),
        }
        for name, cases in sorted(groups.items())
    }


def main(arguments: list[str]) -> None:
    results = list(measure(Path(arguments[0])))
    if "--json" in arguments:
        click.echo(json.dumps(summary(results), indent=2))
        return
    for name, numbers in summary(results).items():
        click.echo(f"{name} {numbers}")
    for result in results:
        if not result.is_right:
            click.echo(f"wrong: {result.case} {sorted(result.accepted_causes)} {result.got[:3]}")


if __name__ == "__main__":
    main(sys.argv[1:])
