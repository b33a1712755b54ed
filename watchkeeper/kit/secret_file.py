"""Read a secret of one line from a file that only its owner may read.

The hub and the agent read the keys of work orders with this module.
"""

from __future__ import annotations

import stat
from pathlib import Path

from watchkeeper.errors import StartRefused

# 128 bits in hexadecimal.
MIN_LENGTH = 32


def read_key_file(path: Path) -> bytes:
    """The first line that is not a comment; StartRefused if it is missing, too short, or readable by other users."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartRefused(f"the key cannot be read: {problem}", where=str(path)) from error
    if mode & stat.S_IRWXO:
        raise StartRefused(
            f"every user of this machine can access the key (mode {stat.S_IMODE(mode):04o})",
            where=str(path),
            remedy=f"Run `chmod o= {path}`",
        )
    secret = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if len(secret) < MIN_LENGTH:
        raise StartRefused(
            f"the key has {len(secret)} characters, the minimum is {MIN_LENGTH}",
            where=str(path),
            remedy="Create one with `openssl rand -hex 32`",
        )
    return secret.encode()
