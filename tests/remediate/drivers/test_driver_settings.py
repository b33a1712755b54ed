"""Which driver the settings choose, and the pages that show these settings."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from watchkeeper.catalogue import pack
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.hub import backends
from watchkeeper.remediate.drivers.kubernetes import KubernetesDriver
from watchkeeper.remediate.drivers.slurm import SlurmDriver

KUBECONFIG = {
    "current-context": "a",
    "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ("a", "b")],
    "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443"}} for name in ("a", "b")],
    "users": [{"name": "u", "user": {"token": "x"}}],
}


def settings(tmp_path: Path, text: str) -> config.Settings:
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(KUBECONFIG))
    (tmp_path / "hub.toml").write_text(text)
    return loading.load(tmp_path / "hub.toml")


def chosen(tmp_path: Path, text: str) -> object:
    return backends.build_driver(settings(tmp_path, text), None)


WATCHED = """
fleet.kubeconfig = "kubeconfig"
remediate.driver = "kubernetes"
"""
OWN = """
fleet.kubeconfig = "other"
remediate.driver = "kubernetes"
remediate.kubeconfig = "kubeconfig"
remediate.kubernetes_context = "b"
remediate.evict_unmanaged = true
"""


@pytest.mark.parametrize(("text", "url"), [(WATCHED, "https://a:6443"), (OWN, "https://b:6443")])
def test_repairs_reach_the_cluster_that_is_watched_or_one_of_their_own(tmp_path: Path, text: str, url: str) -> None:
    driver = chosen(tmp_path, text)
    assert isinstance(driver, KubernetesDriver)
    assert driver.client.server.url == url
    assert driver.rules.evict_unmanaged is ("evict_unmanaged" in text)


def test_a_driver_without_a_cluster_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"remediate\.driver: .* needs a cluster. Set remediate\.kubeconfig"):
        chosen(tmp_path, '[remediate]\ndriver = "kubernetes"')


def test_slurm_is_run_where_the_settings_say(tmp_path: Path) -> None:
    driver = chosen(tmp_path, '[remediate]\ndriver = "slurm"\nslurm_commands = "bin"\nrunning_jobs = "requeue"')
    assert isinstance(driver, SlurmDriver)
    assert (driver.folder, driver.running_jobs) == (tmp_path / "bin", "requeue")


@pytest.mark.parametrize("name", ["kubernetes", "slurm"])
def test_the_settings_of_the_page_load_and_are_all_there_is(tmp_path: Path, name: str) -> None:
    page = (ROOT / "docs" / "howto" / f"repair-{name}.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert settings(tmp_path, block).remediate.driver == name


def test_the_page_names_the_role_and_the_table_as_they_are_shipped() -> None:
    page = (ROOT / "docs" / "howto" / "repair-kubernetes.md").read_text()
    for file in ("kubernetes/repair-rbac.yaml", "kubernetes/reclaim-rbac.yaml", "node_signals.csv"):
        assert f"watchkeeper/packs/{file}" in page
        assert (resources.files("watchkeeper.packs") / file).is_file()
    assert all(pack.load("node_signals.csv", lambda cells: cells["checked"]))
