"""tar and sha256sum can check a bundle; only its owner may read it; it lists the files that are missing."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from watchkeeper.errors import StoreError
from watchkeeper.kit import evidence_file
from watchkeeper.kit.evidence_file import BundleFile

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
PIECES = (
    BundleFile("kernel.log", b"gpu-1: token=abcdefgh Xid 79\n"),
    BundleFile("diag.json", missing_reason="it did not run on gpu-1"),
    evidence_file.json_file("orders/01-scan.json", {"at": NOON, "node": "gpu-1"}),
)


def test_a_bundle_is_redacted_listed_and_checked(tmp_path: Path) -> None:
    hidden = evidence_file.Redaction({"gpu-1": "node-1"})
    path = tmp_path / "b.tar.gz"
    evidence_file.save(path, evidence_file.pack(PIECES, {"subject": "gpu-1"}, now=NOON, redaction_rules=hidden))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    assert (tmp_path / "kernel.log").read_text() == "node-1: token=[hidden] Xid 79\n"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["subject"], manifest["redacted"]) == ("node-1", "secrets and names")
    assert manifest["pieces"][1] == {"name": "diag.json", "missing": "it did not run on node-1"}
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout.count(b": OK")) == (0, 3)
    assert [name.name for name in tmp_path.iterdir() if name.name.startswith(".")] == []


def test_a_partial_bundle_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    # In a container the process that comes next has the same number.
    (tmp_path / f".b.tar.gz.{os.getpid()}").write_bytes(b"half")
    evidence_file.save(tmp_path / "b.tar.gz", b"whole")
    assert (tmp_path / "b.tar.gz").read_bytes() == b"whole"


def test_the_same_evidence_makes_the_same_file() -> None:
    first, second = (evidence_file.pack(PIECES, {}, now=NOON) for _ in range(2))
    assert first == second
    assert set(evidence_file.read(first)) == {"manifest.json", "SHA256SUMS", "kernel.log", "orders/01-scan.json"}


def test_a_file_above_the_limit_is_truncated_and_the_manifest_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_file, "MAX_FILE_BYTES", 10)
    contents = evidence_file.read(evidence_file.pack([BundleFile("a", b"x" * 25)], {}, now=NOON))
    assert contents["a"] == b"x" * 10
    assert "truncated: 25 bytes, the limit was 10" in contents["manifest.json"].decode()


def test_a_bundle_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    evidence_file.save(tmp_path / "b.tar.gz", evidence_file.pack(PIECES, {}, now=NOON))
    subprocess.run(["gunzip", "b.tar.gz"], cwd=tmp_path, check=True)
    path.write_bytes(path.read_bytes().replace(b"Xid 79", b"Xid 13"))
    subprocess.run(["gzip", "b.tar"], cwd=tmp_path, check=True)
    with pytest.raises(StoreError, match=r"kernel\.log is damaged"):
        evidence_file.read((tmp_path / "b.tar.gz").read_bytes())
    with pytest.raises(StoreError, match="this is not a bundle"):
        evidence_file.read(b"something else")


def test_a_small_file_that_unpacks_to_very_much_is_refused_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = evidence_file.pack([BundleFile(str(at), b"0" * 10_000) for at in range(20)], {}, now=NOON)
    assert len(bomb) < 10_000
    monkeypatch.setattr(evidence_file, "MAX_UNPACKED_BYTES", 50_000)
    with pytest.raises(StoreError, match=r"more than 50,000 bytes"):
        evidence_file.read(bomb)
