"""Find the Kubernetes API server and its credentials: from inside a pod, or from a kubeconfig file.

The hub loads this once; `clusters.kubernetes` and `remediate.drivers` use it for every request. Credential plugins
(`exec`, `auth-provider`) are refused: the hub does not run programs that a kubeconfig names.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import CollectError, SettingsError, quote
from watchkeeper.kit import yaml_text
from watchkeeper.net import access, addresses

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REFUSED_REMEDY = "Use a service account with its token in the kubeconfig; see docs/howto/kubernetes.md"


@dataclass(frozen=True, slots=True)
class InlineAccess(access.Access):
    """Access with certificates that are embedded in the kubeconfig."""

    ca_pem: str = ""
    cert_pem: str = field(default="", repr=False)
    key_pem: str = field(default="", repr=False)

    def tls_context(self) -> ssl.SSLContext:
        try:
            # super() without arguments fails in a class that slots=True has recreated.
            context = ssl.create_default_context(cadata=self.ca_pem) if self.ca_pem else access.Access.tls_context(self)
            if self.ca_pem and self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file or None)
            if self.cert_pem:
                _load_client_certificate(context, self.cert_pem, self.key_pem)
        except (OSError, ssl.SSLError) as error:
            raise CollectError(f"a certificate of the kubeconfig cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The URL and credentials of an API server. `origin` names the file and context, or `in-cluster`."""

    url: str
    access: access.Access
    origin: str


def load_in_cluster(account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> ApiServer:
    """The API server of the cluster that this process runs in; SettingsError outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = account / "token"
    if not host or not token.is_file():
        raise SettingsError(
            "this process does not run in a pod with a service account token",
            where="fleet.kubernetes",
            remedy="Set fleet.kubeconfig to a file, or mount the service account token in the pod",
        )
    ca = account / "ca.crt"
    server_access = access.Access(credentials_file=str(token), ca_file=str(ca) if ca.is_file() else "")
    return ApiServer(f"https://{addresses.join_port(host, port)}", server_access, "in-cluster")


def load_kubeconfig(path: Path, context: str | None = None) -> ApiServer:
    """The API server of a context in a kubeconfig; SettingsError names what the file lacks."""
    try:
        document = yaml_text.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the kubeconfig cannot be read: {error.strerror}", where=str(path)) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"not YAML: {error}", where=str(path)) from error
    file = _Kubeconfig(path, document if isinstance(document, dict) else {})
    context_name = context or file.text(file.content, "current-context")
    if not context_name:
        raise file.build_error("has no current-context", "Set fleet.kubernetes_context to a context of the file")
    return file.server(context_name)


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    path: Path
    content: Mapping[str, Any]

    def server(self, context: str) -> ApiServer:
        names = self._find_entry("contexts", context, "context")
        cluster = self._find_entry("clusters", self.text(names, "cluster"), "cluster")
        user_name = self.text(names, "user")
        user = self._find_entry("users", user_name, "user") if user_name else {}
        url = self.text(cluster, "server")
        if not url.startswith(("https://", "http://")):
            problem = f"context {quote(context)} has no server address"
            raise self.build_error(problem, "Add `server: https://…` to its cluster")
        return ApiServer(url.rstrip("/"), self._build_access(cluster, user), f"{self.path}, context {context}")

    def _build_access(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> InlineAccess:
        for plugin_key in ("exec", "auth-provider"):
            if plugin_key in user:
                problem = f"uses a credential plugin (`{plugin_key}`), which the hub does not run"
                raise self.build_error(problem, REFUSED_REMEDY)
        return InlineAccess(
            username=self.text(user, "username"),
            password=self.text(user, "password"),
            credentials=self.text(user, "token"),
            credentials_file=self._resolve_path(user, "tokenFile"),
            ca_file=self._resolve_path(cluster, "certificate-authority"),
            cert_file=self._resolve_path(user, "client-certificate"),
            key_file=self._resolve_path(user, "client-key"),
            server_name=self.text(cluster, "tls-server-name"),
            insecure_skip_verify=cluster.get("insecure-skip-tls-verify") is True,
            ca_pem=self._decode_inline(cluster, "certificate-authority-data"),
            cert_pem=self._decode_inline(user, "client-certificate-data"),
            key_pem=self._decode_inline(user, "client-key-data"),
        )

    def _find_entry(self, group: str, name: str, inner: str) -> Mapping[str, Any]:
        entries = self.content.get(group)
        listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        for entry in listed:
            if entry.get("name") == name:
                section = entry.get(inner)
                return section if isinstance(section, dict) else {}
        names = ", ".join(str(entry.get("name")) for entry in listed) or "none"
        raise self.build_error(f"has no {inner} {quote(name)}", f"It has: {names}")

    def _resolve_path(self, section: Mapping[str, Any], key: str) -> str:
        """Paths in a kubeconfig are relative to its directory."""
        file_path = self.text(section, key)
        return str(self.path.parent / file_path) if file_path else ""

    def _decode_inline(self, section: Mapping[str, Any], key: str) -> str:
        text = self.text(section, key)
        try:
            return base64.b64decode(text, validate=True).decode("ascii")
        except ValueError as error:
            problem = f"`{key}` is not a base64 certificate or key"
            raise self.build_error(problem, "Write a valid value to this key") from error

    def text(self, section: Mapping[str, Any], key: str) -> str:
        value = section.get(key)
        return value if isinstance(value, str) else ""

    def build_error(self, problem: str, remedy: str) -> SettingsError:
        return SettingsError(problem, where=str(self.path), remedy=remedy)


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load through a temporary private file, because OpenSSL reads a client certificate from files only."""
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as pem_file:
        pem_file.write(f"{certificate}\n{key}\n")
        pem_file.flush()
        context.load_cert_chain(pem_file.name)
