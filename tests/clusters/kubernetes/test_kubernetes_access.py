"""Ways to an API server: a kubeconfig in all its forms, and a pod's own service account."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from watchkeeper.clusters.kubernetes import kubernetes_source
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError, SettingsError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.readers.clusters import kubeconfig

CLUSTER = {"server": "https://10.0.0.1:6443/"}


def written(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, **more: Any) -> Path:
    content = {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {**CLUSTER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**content, **more}))
    return path


def test_a_token_is_sent_and_never_shown(tmp_path: Path) -> None:
    server = kubeconfig.load_kubeconfig(written(tmp_path, {"token": "s3cret"}))
    assert server.url == "https://10.0.0.1:6443"
    assert server.access.authorization_header() == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(server)


def test_a_token_file_counts_from_the_kubeconfig_and_is_read_each_time(tmp_path: Path) -> None:
    server = kubeconfig.load_kubeconfig(written(tmp_path, {"tokenFile": "token"}))
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert server.access.authorization_header() == {"Authorization": f"Bearer {token}"}


def test_certificates_inside_the_file_are_used(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=hub", "-days", "1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    inline = {name: base64.b64encode(path.read_bytes()).decode() for name, path in (("k", key), ("c", certificate))}
    user = {"client-certificate-data": inline["c"], "client-key-data": inline["k"]}
    path = written(tmp_path, user, {"certificate-authority-data": inline["c"]})
    context = kubeconfig.load_kubeconfig(path).access.tls_context()
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "hub"),),)]


def test_a_certificate_that_is_none_is_said_when_it_is_used(tmp_path: Path) -> None:
    user = {"client-certificate-data": base64.b64encode(b"nonsense").decode()}
    server = kubeconfig.load_kubeconfig(written(tmp_path, user))
    with pytest.raises(CollectError, match="a certificate of the kubeconfig cannot be used"):
        server.access.tls_context()


def test_a_context_may_be_chosen(tmp_path: Path) -> None:
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("prod", "test")]
    path = written(tmp_path, {"token": "x"}, contexts=contexts)
    assert kubeconfig.load_kubeconfig(path, "test").origin.endswith("context test")


@pytest.mark.parametrize(
    ("user", "more", "words"),
    [
        ({"exec": {"command": "aws"}}, {}, "uses a credential plugin (`exec`)"),
        ({"auth-provider": {"name": "gcp"}}, {}, "(`auth-provider`)"),
        ({}, {"current-context": ""}, "has no current-context. Set fleet.kubernetes_context to a context of the file"),
        ({}, {"current-context": "other"}, "has no context 'other'. It has: prod"),
        ({}, {"clusters": []}, "has no cluster 'c'. It has: none"),
        ({}, {"clusters": [{"name": "c", "cluster": {}}]}, "has no server address"),
        ({"client-key-data": "%%%"}, {}, "`client-key-data` is not a base64 certificate"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_way_out(
    tmp_path: Path, user: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        kubeconfig.load_kubeconfig(written(tmp_path, user, **more))
    assert words in str(raised.value)
    assert str(tmp_path / "config") in str(raised.value)


@pytest.mark.parametrize("content", ["[", "- a", "contexts: {}", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(SettingsError):
        kubeconfig.load_kubeconfig(tmp_path / "config")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        kubeconfig.load_kubeconfig(tmp_path / "config")


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("account")
    (tmp_path / "ca.crt").write_text("")
    found = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    server = kubeconfig.load_in_cluster(tmp_path, found)
    assert (server.url, server.access.ca_file) == ("https://[fd00::1]:6443", str(tmp_path / "ca.crt"))
    assert server.access.authorization_header() == {"Authorization": "Bearer account"}


def test_outside_of_a_cluster_the_way_out_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"Set fleet\.kubeconfig to a file"):
        kubeconfig.load_in_cluster(tmp_path, {})


def test_a_context_without_a_kubeconfig_is_refused() -> None:
    wanted = config.FleetSettings(kubernetes_context="prod")
    with pytest.raises(SettingsError, match=r"Set fleet\.kubeconfig to the path"):
        kubernetes_source.from_settings(wanted, time=clock.ScaledClock(), metrics=own_metrics.Registry())


def test_a_fleet_without_kubernetes_has_no_source() -> None:
    assert (
        kubernetes_source.from_settings(
            config.FleetSettings(), time=clock.ScaledClock(), metrics=own_metrics.Registry()
        )
        is None
    )
