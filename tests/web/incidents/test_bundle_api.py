"""The evidence bundle over HTTP and from the command line."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.web.running import serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.node.bundle import command
from watchkeeper.kit import evidence_file


class Evidence:
    """Evidence about INC-1 and n1 only."""

    def bundle_incident(self, id: str, *, now: datetime, hides_names: bool) -> bytes | None:
        return self._pack(id, now, hides_names=hides_names) if id == "INC-1" else None

    def bundle_node(self, name: str, *, cluster: str | None, now: datetime, hides_names: bool) -> bytes | None:
        return self._pack(f"{cluster}/{name}", now, hides_names=hides_names) if name == "n1" else None

    def _pack(self, subject: str, now: datetime, *, hides_names: bool) -> bytes:
        pieces = [
            evidence_file.BundleFile("a.txt", b"a"),
            evidence_file.BundleFile("diag.json", missing_reason="diagnostics did not run"),
        ]
        return evidence_file.pack(pieces, {"subject": subject, "hides": hides_names}, now=now)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("", 400, "set either `incident` or `node`"),
        ("?incident=INC-1&node=n1", 400, "set either `incident` or `node`"),
        ("?incident=INC-2", 404, "incident INC-2 not found"),
        ("?node=n2", 404, "node n2 not found"),
    ],
)
def test_a_bundle_of_an_unknown_or_ambiguous_subject_is_refused(query: str, status: int, words: str) -> None:
    with serving(SmallHub(evidence=Evidence())) as site:
        reply = site.ask(f"/api/bundle{query}")
    assert (reply.status, words in reply.json["error"]) == (status, True)


def test_a_bundle_is_saved_privately_and_missing_files_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    with serving(SmallHub(evidence=Evidence())) as site:
        hub = ["--hub", f"http://127.0.0.1:{site.port}"]
        ran = CliRunner().invoke(command, ["--node", "n1", "--cluster", "c", "--hide-names", "-o", str(path), *hub])
    assert ran.exit_code == 0
    assert ran.output.splitlines()[1:] == ["  missing diag.json: diagnostics did not run"]
    assert path.stat().st_mode & 0o777 == 0o600
    manifest = evidence_file.read(path.read_bytes())["manifest.json"].decode()
    assert '"subject": "c/n1"' in manifest
    assert '"hides": true' in manifest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of --incident ID, --node NAME and --local"),
        (["--local", "--node", "n1"], "give one of --incident ID"),
        (["--node", "n1", "--bug-report"], "--bug-report runs on this machine: it needs --local"),
        (["--local", "--ask-node"], "--ask-node needs a hub"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    ran = CliRunner().invoke(command, [*arguments, "-o", str(tmp_path / "x")])
    assert (ran.exit_code, words in ran.output) == (2, True)


def test_a_local_bundle_lists_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho Serial Number : 1650 $@ token=abcdefgh\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    path = tmp_path / "b.tar.gz"
    ran = CliRunner().invoke(command, ["--local", "--bug-report", "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    assert "missing nvidia-bug-report.log: nvidia-bug-report.sh is not installed" in ran.output
    files = evidence_file.read(path.read_bytes())
    assert files["nvidia-smi_-q.txt"] == b"Serial Number : 1650 -q token=[hidden]\n"
    assert "scan.json" in files
