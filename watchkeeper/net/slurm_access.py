"""Who asks slurmrestd: the headers by which it knows them."""

from __future__ import annotations

from pathlib import Path


def headers(user: str | None, token_file: Path | None) -> dict[str, str]:
    """Read each time: a JWT of Slurm lives half an hour, and something renews the file. OSError if it cannot be."""
    found = {"Accept": "application/json"}
    if user:
        found["X-SLURM-USER-NAME"] = user
    if token_file is not None:
        found["X-SLURM-USER-TOKEN"] = token_file.read_text().strip().removeprefix("SLURM_JWT=")
    return found
