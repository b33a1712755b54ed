"""Asking the doctor about texts, as the tests do."""

from __future__ import annotations

import io
from collections.abc import Mapping

from watchkeeper.doctor import examine, report
from watchkeeper.readers import bundles


def ask(*texts: str | bytes, **named: str | bytes) -> report.DoctorReport:
    """The answer to some inputs; keyword arguments are inputs with a name, `rank1_log` standing for `rank1.log`."""
    given: Mapping[str, str | bytes] = {f"input-{at}": text for at, text in enumerate(texts)} | {
        name.replace("_log", ".log"): text for name, text in named.items()
    }
    streams = [
        bundles.Stream(name, io.BytesIO(text.encode() if isinstance(text, str) else text))
        for name, text in given.items()
    ]
    return examine.examine(streams)


def causes(answer: report.DoctorReport) -> list[str]:
    return [finding.cause for finding in answer.findings]
