"""A secret of one line in a file that only its owner may read.

The hub and the agent read the keys of work orders with it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from watchkeeper.errors import StartRefused

# 128 bits in hexadecimal.
SHORTEST = 32


def read_key_file(path: Path) -> bytes:
    """The first line that is not a comment; StartRefused if it is missing, short, or readable by everyone."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartRefused(f"the key cannot be read: {problem}", where=str(path)) from error
    if mode & stat.S_IRWXO:
        raise StartRefused(
            f"everyone on this machine may use this key (mode {stat.S_IMODE(mode):04o})",
            where=str(path),
            remedy="Run chmod o= on it",
        )
    secret = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if len(secret) < SHORTEST:
        raise StartRefused(
            f"the key has {len(secret)} characters, at least {SHORTEST} are needed",
            where=str(path),
            remedy="`openssl rand -hex 32` writes a good one",
        )
    return secret.encode()
