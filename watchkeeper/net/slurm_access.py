"""The HTTP headers that authenticate a request to slurmrestd."""

from __future__ import annotations

from pathlib import Path


def headers(user: str | None, token_file: Path | None) -> dict[str, str]:
    """The headers of a request; OSError if the token cannot be read."""
    # The file is read each time: a Slurm JWT is valid for half an hour, and its file is renewed.
    values = {"Accept": "application/json"}
    if user:
        values["X-SLURM-USER-NAME"] = user
    if token_file is not None:
        values["X-SLURM-USER-TOKEN"] = token_file.read_text().strip().removeprefix("SLURM_JWT=")
    return values
