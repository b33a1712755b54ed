"""TLS of the hub on a real socket: certificates reload without a restart, and clients need their own."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError, StartRefused
from watchkeeper.net.access import Access
from watchkeeper.web.auth.tls import Certificates


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    line = ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(line, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make(folder, name) for name in ("first", "second", "client", "stranger")}


@pytest.fixture
def folder(tmp_path: Path, pairs: dict[str, tuple[Path, Path]]) -> Path:
    put(tmp_path, pairs["first"])
    return tmp_path


def put(folder: Path, pair: tuple[Path, Path]) -> None:
    for source, name in zip(pair, ("hub.pem", "hub.key"), strict=True):
        shutil.copy(source, folder / ".new")
        os.replace(folder / ".new", folder / name)


@pytest.fixture
def hub(folder: Path, pairs: dict[str, tuple[Path, Path]]) -> Iterator[tuple[Site, Certificates]]:
    certificates = Certificates(folder / "hub.pem", folder / "hub.key", client_ca=folder / "ca.pem")
    with serving(SmallHub(), certificates=certificates) as site:
        yield site, certificates


@pytest.fixture(autouse=True)
def authority(folder: Path, pairs: dict[str, tuple[Path, Path]]) -> None:
    shutil.copy(pairs["client"][0], folder / "ca.pem")


def ask(site: Site, ca: Path, client: tuple[Path, Path] | None) -> str:
    cert, key = (str(path) for path in client) if client else ("", "")
    access = Access(ca_file=str(ca), cert_file=cert, key_file=key)
    try:
        return str(Client(site.url.replace("http:", "https:"), access=access).status().plain["ok"])
    except HubError as error:
        return str(error)


def test_a_renewed_certificate_is_used_without_a_restart(
    hub: tuple[Site, Certificates], folder: Path, pairs: dict[str, tuple[Path, Path]]
) -> None:
    site, certificates = hub
    assert ask(site, pairs["first"][0], pairs["client"]) == "True"
    assert not certificates.refresh()
    put(folder, pairs["second"])
    assert certificates.refresh()
    assert ask(site, pairs["second"][0], pairs["client"]) == "True"
    assert "certificate is not trusted" in ask(site, pairs["first"][0], pairs["client"])


def test_a_client_without_a_certificate_of_the_ca_gets_no_answer(
    hub: tuple[Site, Certificates], folder: Path, pairs: dict[str, tuple[Path, Path]]
) -> None:
    site, certificates = hub
    assert "no hub answers" in ask(site, pairs["first"][0], None)
    assert "no hub answers" in ask(site, pairs["first"][0], pairs["stranger"])
    # The CA is reloaded as well: clients of the previous CA are refused.
    shutil.copy(pairs["stranger"][0], folder / "ca.pem")
    assert certificates.refresh()
    assert ask(site, pairs["first"][0], pairs["stranger"]) == "True"
    assert "no hub answers" in ask(site, pairs["first"][0], pairs["client"])


def test_invalid_files_leave_the_previous_certificate_in_use(
    hub: tuple[Site, Certificates],
    folder: Path,
    pairs: dict[str, tuple[Path, Path]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    site, certificates = hub
    shutil.copy(pairs["second"][0], folder / "hub.pem")
    assert not certificates.refresh()
    assert not certificates.refresh()
    assert caplog.text.count("the previous one stays in use") == 1
    assert ask(site, pairs["first"][0], pairs["client"]) == "True"


def test_a_key_that_every_user_can_read_is_refused(pairs: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    certificate, key = (Path(shutil.copy(path, tmp_path)) for path in pairs["first"])
    key.chmod(0o644)
    with pytest.raises(StartRefused, match=r"every user of this machine can access the private key \(mode 0644\)"):
        Certificates(certificate, key)


def test_a_hub_does_not_start_with_a_key_of_another_certificate(pairs: dict[str, tuple[Path, Path]]) -> None:
    with pytest.raises(StartRefused, match="KEY_VALUES_MISMATCH"):
        Certificates(pairs["first"][0], pairs["second"][1])
    with pytest.raises(StartRefused, match="No such file"):
        Certificates(Path("/nowhere/hub.pem"))


def test_old_versions_of_tls_are_refused(pairs: dict[str, tuple[Path, Path]]) -> None:
    context = Certificates(*pairs["first"]).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
