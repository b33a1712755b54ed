"""An evidence bundle as one file: a tar.gz of named pieces, with a manifest and checksums, redacted and bounded.

The hub (`remediate.evidence`) and a node (`cli.bundle --local`) hand in pieces; what there is not is a piece too, with
the reason, so that whoever reads the bundle knows what was looked for. `watchkeeper doctor` reads the file back.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from watchkeeper.errors import StoreError
from watchkeeper.kit import redaction, wire
from watchkeeper.kit.files import write_atomically

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
# A node's kernel log of a bad week is some MiB; what is longer repeats itself.
MOST_PIECE_BYTES = 8 << 20
MOST_BYTES = 64 << 20
# With the manifest and the checksums, which have no limit of their own.
MOST_UNPACKED_BYTES = MOST_BYTES + (16 << 20)
MODE = 0o600


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle; without `content` it says why there is none."""

    name: str
    content: bytes | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Secrets are always taken out; `names` are replaced by others."""

    names: Mapping[str, str] = field(default_factory=dict)

    def clean(self, content: bytes) -> bytes:
        text = redaction.hide_secrets(content.decode("utf-8", "replace"))
        return redaction.replace_names(text, self.names).encode()


def json_file(name: str, value: object) -> BundleFile:
    """A piece that is JSON, written for people too."""
    return BundleFile(name, (json.dumps(wire.to_plain(value), indent=1, ensure_ascii=False) + "\n").encode())


def pack(
    pieces: Sequence[BundleFile], about: Mapping[str, object], *, now: datetime, hidden: Redaction | None = None
) -> bytes:
    """The file's content. `about` opens the manifest: what the bundle is for, and who made it."""
    hidden = hidden or Redaction()
    files: dict[str, bytes] = {}
    listed: list[dict[str, object]] = []
    left = MOST_BYTES
    for piece in pieces:
        if piece.content is None:
            listed.append({"name": piece.name, "missing": piece.missing})
            continue
        clean = hidden.clean(piece.content)
        room = min(MOST_PIECE_BYTES, left)
        kept = clean[:room]
        left -= len(kept)
        files[piece.name] = kept
        entry: dict[str, object] = {"name": piece.name, "bytes": len(kept)}
        if len(kept) < len(clean):
            entry["cut"] = f"it has {len(clean)} bytes, there was room for {room}"
        listed.append(entry)
    manifest = {
        **about,
        "made_at": wire.format_time(now),
        "redacted": "secrets and names" if hidden.names else "secrets",
        "pieces": listed,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"
    files = {MANIFEST: hidden.clean(text), **files}
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    return _tar({**files, SUMS: sums.encode()}, now)


def _tar(files: Mapping[str, bytes], now: datetime) -> bytes:
    packed = io.BytesIO()
    # The same evidence makes the same file: no time but the given one, no user.
    at = int(now.timestamp())
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=at) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), MODE, at
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def save(path: Path, content: bytes) -> None:
    """For its owner's eyes only, and whole or not at all."""
    try:
        write_atomically(path, content, mode=MODE)
    except OSError as error:
        raise StoreError(f"the bundle cannot be written: {error.strerror}", where=str(path)) from error


def read(content: bytes) -> dict[str, bytes]:
    """The files of a bundle whose checksums hold; StoreError names what does not."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            found, left = {}, MOST_UNPACKED_BYTES
            # One by one: the list of all would unpack the whole file first, however much that is.
            for member in archive:
                left -= member.size
                if left < 0:
                    raise StoreError(f"it unpacks to more than {MOST_UNPACKED_BYTES:,} bytes, the limit of a bundle")
                if (opened := archive.extractfile(member)) is None:
                    raise StoreError(f"{member.name} is no file of a bundle")
                found[member.name] = opened.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise StoreError(f"this is not a bundle: {error}") from error
    listed = [line.partition("  ") for line in found.get(SUMS, b"").decode("utf-8", "replace").splitlines()]
    for digest, _, name in listed:
        if name not in found or hashlib.sha256(found[name]).hexdigest() != digest:
            raise StoreError(f"{name} is not as it was packed")
    if unlisted := found.keys() - {SUMS} - {name for _, _, name in listed}:
        raise StoreError(f"{', '.join(sorted(unlisted))} has no checksum")
    return found
