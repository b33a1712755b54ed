"""List what to collect next when the cause is unknown, depending on the inputs so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.model import diagnosis

FILE = "doctor_inputs.csv"


@dataclass(frozen=True, slots=True)
class _CollectStep:
    """A step that applies only with, or not with, an input whose kind starts with one of these prefixes."""

    only: tuple[str, ...]
    unless: tuple[str, ...]
    step: diagnosis.DiagnosisStep


def collection_steps(kinds: Iterable[str]) -> tuple[diagnosis.DiagnosisStep, ...]:
    input_kinds = tuple(kinds)
    return tuple(
        row.step
        for row in _rows()
        if (not row.only or any(kind.startswith(row.only) for kind in input_kinds))
        and not any(row.unless and kind.startswith(row.unless) for kind in input_kinds)
    )


@cache
def _rows() -> tuple[_CollectStep, ...]:
    return pack.load(FILE, _read_row)


def _read_row(cells: Mapping[str, str]) -> _CollectStep:
    step = diagnosis.DiagnosisStep(pack.required(cells["do"]), cells["command"] or None, diagnosis.Risk(cells["risk"]))
    return _CollectStep(tuple(cells["only"].split()), tuple(cells["unless"].split()), step)
