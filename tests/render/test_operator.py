"""`render operator`: values and ConfigMaps that say what the facts say, and an installer that looks before it acts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import render_tools
from tests.support.clusters import kubernetes_server
from tests.support.paths import ROOT
from watchkeeper.config import settings as config
from watchkeeper.readers import counters_csv
from watchkeeper.render import operator

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "intfloat/e5-large-v2")
SETTINGS = config.Settings(fleet=config.FleetSettings(cluster="prod-1"), render=config.RenderSettings(models=MODELS))
# Answers of a healthy cluster, by the words of the question.
HEALTHY = {
    "--raw /version": '{"gitVersion": "v1.34.2"}',
    "get nodes": "gpu-1 Ready\ngpu-2 Ready",
    "get storageclass": '{"storageclass.kubernetes.io/is-default-class":"true"}',
    "can-i": "yes",
}


@cache
def texts(settings: config.Settings = SETTINGS) -> dict[str, str]:
    return {file.path: file.text for file in operator.files(settings)}


def parsed(name: str, settings: config.Settings = SETTINGS) -> Any:
    return yaml.load(texts(settings)[name], Loader=yaml.CSafeLoader)


@pytest.mark.slow
def test_the_exporter_of_the_operator_is_off_where_our_agent_is_the_exporter() -> None:
    assert parsed("gpu-operator-values.yaml")["dcgmExporter"]["enabled"] is False
    kept = config.Settings(fleet=config.FleetSettings(kubernetes_targets=("app=nvidia-dcgm-exporter",)))
    values = parsed("gpu-operator-values.yaml", kept)["dcgmExporter"]
    assert (values["enabled"], values["serviceMonitor"]["honorLabels"]) == (True, True)


@pytest.mark.slow
def test_the_operator_is_told_of_the_config_maps_that_lie_beside_its_values() -> None:
    values = parsed("gpu-operator-values.yaml")
    maps = {name: parsed(name) for name in ("sharing.yaml", "mig.yaml", "dcgm-metrics.yaml")}
    named = {one["metadata"]["name"]: one["data"] for one in maps.values()}
    assert values["devicePlugin"]["config"]["default"] in named[values["devicePlugin"]["config"]["name"]]
    layouts = yaml.safe_load(named[values["migManager"]["config"]["name"]]["config.yaml"])["mig-configs"]
    assert values["migManager"]["config"]["default"] in layouts
    assert "dcgm-metrics.csv" in named[values["dcgmExporter"]["config"]["name"]]
    assert {one["metadata"]["namespace"] for one in maps.values()} == {operator.OPERATOR_NAMESPACE}


@pytest.mark.slow
def test_shares_of_a_gpu_cannot_be_taken_for_gpus() -> None:
    for name, text in parsed("sharing.yaml")["data"].items():
        sharing = yaml.safe_load(text).get("sharing", {})
        assert len(sharing) <= 1, f"{name}: time-slicing and MPS exclude each other"
        for how in sharing.values():
            assert how["renameByDefault"] is True
            assert how["failRequestsGreaterThanOne"] is True


@pytest.mark.slow
def test_every_field_that_a_rule_or_a_panel_asks_for_is_in_the_exporters_file() -> None:
    lines = parsed("dcgm-metrics.yaml")["data"]["dcgm-metrics.csv"].splitlines()
    read = counters_csv.read(lines)
    assert not read.problems
    assert {one.name for one in read.counters} == set(operator.fields(SETTINGS))
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in {one.name for one in read.counters}


@pytest.mark.slow
def test_kube_prometheus_stack_reads_monitors_of_every_release_and_knows_the_cluster() -> None:
    spec = parsed("kube-prometheus-stack-values.yaml")["prometheus"]["prometheusSpec"]
    for kind in ("serviceMonitor", "podMonitor", "rule"):
        assert spec[f"{kind}SelectorNilUsesHelmValues"] is False
    assert spec["externalLabels"] == {"cluster": "prod-1"}


@pytest.mark.slow
def test_the_model_cache_is_valid_and_fetches_each_model_once(tmp_path: Path) -> None:
    found = render_tools.objects(texts()["model-cache.yaml"])
    with render_tools.package("kubernetes_validate") as validator:
        for one in found.values():
            assert validator.validate(one, "1.37", strict=True)
    job = next(one for name, one in found.items() if name.startswith("Job/"))
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert script.splitlines() == [f"hf download {model}" for model in MODELS]


@pytest.mark.slow
def test_another_list_of_models_is_another_job_and_none_is_no_job() -> None:
    fewer = config.Settings(render=config.RenderSettings(models=MODELS[:1]))
    names = [set(render_tools.objects(texts(one)["model-cache.yaml"])) for one in (SETTINGS, fewer, config.Settings())]
    assert names[0] != names[1]
    assert names[2] == {"PersistentVolumeClaim/model-cache"}


@pytest.fixture
def installer(tmp_path: Path) -> Path:
    return render_tools.write(operator.files(SETTINGS), tmp_path / "operator") / "install.sh"


def run(
    installer: Path, *words: str, answers: dict[str, str] = HEALTHY, also: str = ""
) -> subprocess.CompletedProcess[str]:
    """The installer with a kubectl and a helm that answer as told and note what they were asked."""
    programs = installer.parent / "bin"
    programs.mkdir(exist_ok=True)
    cases = "".join(f"*'{words}'*) echo '{answer}'; exit 0;;\n" for words, answer in answers.items())
    for name in ("kubectl", "helm"):
        fake = programs / name
        fake.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {programs}/calls\ncase "$*" in\n{also}{cases}*) exit 1;;\nesac\n'
        )
        fake.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    return subprocess.run(
        [str(installer), *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path, "HOME": "/nonexistent"},
    )


@pytest.mark.slow
def test_the_installer_passes_the_linter(installer: Path) -> None:
    render_tools.run(["bash", "-n", installer])
    render_tools.run([render_tools.program("shellcheck"), installer])


@pytest.mark.slow
def test_a_dry_run_says_every_step_and_changes_nothing(installer: Path) -> None:
    done = run(installer, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "would run: helm upgrade --install gpu-operator nvidia/gpu-operator --version v26.7.0" in done.stdout
    assert "would run: helm upgrade --install watchkeeper" in done.stdout
    calls = (installer.parent / "bin" / "calls").read_text().splitlines()
    asked = [call.split()[1] for call in calls if call.startswith(("kubectl ", "helm "))]
    assert set(asked) == {"get", "auth"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("--raw /version", "the API server does not answer"),
        ("get nodes", "the cluster has no nodes"),
        ("get storageclass", "no storage class is the default"),
        ("can-i", "you may not create namespaces"),
    ],
)
def test_what_is_not_ready_is_named_and_nothing_is_done(installer: Path, missing: str, said: str) -> None:
    done = run(installer, answers={words: answer for words, answer in HEALTHY.items() if words != missing})
    assert done.returncode == 1
    assert said in done.stdout
    assert "must be put right first; nothing was changed" in done.stdout
    assert "helm " not in (installer.parent / "bin" / "calls").read_text()


@pytest.mark.slow
def test_an_old_cluster_and_a_second_device_plugin_are_refused(installer: Path) -> None:
    old = run(installer, "--check", answers={**HEALTHY, "--raw /version": '{"gitVersion": "v1.20.2"}'})
    assert "Kubernetes 1.20.2; 1.25 is the oldest" in old.stdout
    plugin = "*'nvidia-device-plugin-ds'*) echo 'kube-system nvidia-device-plugin'; exit 0;;\n"
    assert "the static device plugin runs" in run(installer, "--check", also=plugin).stdout


@pytest.mark.slow
def test_a_word_that_it_does_not_know_prints_how_to_use_it(installer: Path) -> None:
    done = run(installer, "--install")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes_server.Cluster]:
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes"), nodes=1) as running:
        yield running


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_preflight_reads_a_real_cluster(installer: Path, cluster: kubernetes_server.Cluster) -> None:
    """1.20 has no default storage class here and is too old: both are said, and nothing else is wrong."""
    tools = render_tools.program("kubectl").parent
    render_tools.program("helm")
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "KUBECONFIG": str(cluster.kubeconfig), "HOME": "/nonexistent"}
    done = subprocess.run([installer, "--check"], capture_output=True, text=True, check=False, env=environment)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")]
    said = [(mark, text) for mark, text in lines]
    assert ("ok", "1 nodes with GPUs") in said
    assert ("ok", "you may create namespaces") in said
    wrong = [text for mark, text in said if mark == "wrong"]
    assert [text.partition(";")[0].partition(",")[0] for text in wrong] == [
        "Kubernetes 1.20.2",
        "no storage class is the default",
    ]
    assert done.returncode == 1


def test_the_exporter_reads_every_field_that_a_rule_text_names() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "watchkeeper" / "packs" / "rules").glob("*.yaml"))
    named = set(re.findall(r"\bDCGM_FI_\w+", re.sub(r"^\s*(#|summary|description).*$", "", rules, flags=re.MULTILINE)))
    listed = set(re.findall(r"^DCGM_FI_\w+", parsed("dcgm-metrics.yaml")["data"]["dcgm-metrics.csv"], re.MULTILINE))
    assert len(named) > 20
    assert named - listed == set()
