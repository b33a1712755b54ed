"""Write and read an evidence bundle: a redacted tar.gz with a manifest, checksums and a size limit.

The hub (`remediate.evidence`) and a node (`cli.bundle --local`) provide the files. A file that is missing is listed
with the reason, so that a reader knows that it was searched for.
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
# A node's kernel log of a bad week has a few MiB; a longer log repeats itself.
MAX_FILE_BYTES = 8 << 20
MAX_BYTES = 64 << 20
# Including the manifest and the checksums, which have no separate limit.
MAX_UNPACKED_BYTES = MAX_BYTES + (16 << 20)
FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle; if it has no `content`, `missing_reason` says why."""

    name: str
    content: bytes | None = None
    missing_reason: str = ""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What to redact: secrets always, and `names`, each with its replacement."""

    names: Mapping[str, str] = field(default_factory=dict)

    def clean(self, content: bytes) -> bytes:
        return redaction.replace_names(redaction.hide_secrets(content.decode("utf-8", "replace")), self.names).encode()


def json_file(name: str, value: object) -> BundleFile:
    return BundleFile(name, (json.dumps(wire.to_plain(value), indent=1, ensure_ascii=False) + "\n").encode())


def pack(
    files: Sequence[BundleFile],
    header: Mapping[str, object],
    *,
    now: datetime,
    redaction_rules: Redaction | None = None,
) -> bytes:
    """The bytes of the bundle; `header` starts the manifest and says what the bundle is for and who made it."""
    redaction_rules = redaction_rules or Redaction()
    contents: dict[str, bytes] = {}
    entries: list[dict[str, object]] = []
    remaining_bytes = MAX_BYTES
    for file in files:
        if file.content is None:
            entries.append({"name": file.name, "missing": file.missing_reason})
            continue
        redacted = redaction_rules.clean(file.content)
        limit = min(MAX_FILE_BYTES, remaining_bytes)
        kept = redacted[:limit]
        remaining_bytes -= len(kept)
        contents[file.name] = kept
        entry: dict[str, object] = {"name": file.name, "bytes": len(kept)}
        if len(kept) < len(redacted):
            entry["cut"] = f"truncated: {len(redacted)} bytes, the limit was {limit}"
        entries.append(entry)
    manifest = {
        **header,
        "made_at": wire.format_time(now),
        "redacted": "secrets and names" if redaction_rules.names else "secrets",
        "pieces": entries,
    }
    manifest_text = json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"
    contents = {MANIFEST: redaction_rules.clean(manifest_text), **contents}
    checksums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())
    return _tar({**contents, SUMS: checksums.encode()}, now)


def _tar(contents: Mapping[str, bytes], now: datetime) -> bytes:
    buffer = io.BytesIO()
    # The same evidence gives the same bytes: the only time is `now`, and there is no user.
    at = int(now.timestamp())
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=at) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), FILE_MODE, at
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def save(path: Path, content: bytes) -> None:
    """Write the bundle atomically, readable only by its owner."""
    try:
        write_atomically(path, content, mode=FILE_MODE)
    except OSError as error:
        raise StoreError(f"the bundle cannot be written: {error.strerror}", where=str(path)) from error


def read(content: bytes) -> dict[str, bytes]:
    """The files of a bundle; StoreError names a file that is damaged or has no checksum."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            contents, remaining_bytes = {}, MAX_UNPACKED_BYTES
            # One at a time: a list of all members would unpack the whole archive first, whatever its size.
            for member in archive:
                remaining_bytes -= member.size
                if remaining_bytes < 0:
                    raise StoreError(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes, the limit of a bundle")
                if (stream := archive.extractfile(member)) is None:
                    raise StoreError(f"{member.name} is not a regular file")
                contents[member.name] = stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise StoreError(f"this is not a bundle: {error}") from error
    checksum_lines = [line.partition("  ") for line in contents.get(SUMS, b"").decode("utf-8", "replace").splitlines()]
    for digest, _, name in checksum_lines:
        if name not in contents or hashlib.sha256(contents[name]).hexdigest() != digest:
            raise StoreError(f"{name} is damaged: its checksum does not match")
    if unlisted := contents.keys() - {SUMS} - {name for _, _, name in checksum_lines}:
        raise StoreError(f"{', '.join(sorted(unlisted))} has no checksum")
    return contents
