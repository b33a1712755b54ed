"""`render helm`: a chart that Helm accepts, and whose objects are those of the kustomization."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import render_tools
from watchkeeper.config import settings as config
from watchkeeper.render import helm, kubernetes

EVERYTHING = tuple(f"{path}=true" for path, _ in kubernetes.COMPONENTS.values())
RIGHTS = tuple(f"{name}.enabled=true" for name in kubernetes.RBAC_COMPONENTS)
BARE = (
    "agent.runtimeClassName=''",
    "agent.priorityClassName=''",
    "network.enabled=false",
    "hub.storage.className=fast",
)
OPTIONS = ("agent.options=[--expected-gpus=8, --no-ipmi]", "image.pullSecrets=[{name: registry}]")


def settings(*values: str) -> config.Settings:
    return config.Settings(
        fleet=config.FleetSettings(cluster="prod-1"), render=config.RenderSettings(values=values, namespace="gpu-watch")
    )


def template(chart: Path, *options: str) -> str:
    command = [render_tools.program("helm"), "template", "watchkeeper", chart / "watchkeeper", "-n", "gpu-watch"]
    return render_tools.run([*command, *options])


@pytest.mark.slow
@pytest.mark.parametrize("values", [(), EVERYTHING, BARE, OPTIONS], ids=["plain", "everything", "bare", "options"])
def test_the_chart_gives_the_objects_of_the_kustomization(values: tuple[str, ...], tmp_path: Path) -> None:
    chart = render_tools.write(helm.files(settings(*values)), tmp_path / "chart")
    tree = render_tools.write(kubernetes.files(settings(*values)), tmp_path / "tree")
    built = render_tools.objects(render_tools.run([render_tools.program("kubectl"), "kustomize", tree]))
    # Helm makes the namespace itself.
    assert built.pop("Namespace/gpu-watch")
    assert render_tools.objects(template(chart)) == built


@pytest.mark.slow
def test_values_given_to_helm_do_what_values_of_the_settings_do(tmp_path: Path) -> None:
    chart = render_tools.write(helm.files(settings()), tmp_path / "plain")
    chosen = render_tools.write(helm.files(settings("hub.storage.size=200Gi", *RIGHTS)), tmp_path / "chosen")
    given = template(chart, "--set", ",".join(("hub.storage.size=200Gi", *RIGHTS)))
    assert render_tools.objects(given) == render_tools.objects(template(chosen))


@pytest.mark.slow
def test_the_chart_passes_the_linter_strictly(tmp_path: Path) -> None:
    chart = render_tools.write(helm.files(settings(*EVERYTHING)), tmp_path)
    render_tools.run([render_tools.program("helm"), "lint", "--strict", chart / "watchkeeper"])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["hub.storage.sizes=1Gi", "agent.privileged=maybe", "hub.maxUnavailable=few"])
def test_a_value_that_is_misspelt_or_of_the_wrong_kind_is_refused(wrong: str, tmp_path: Path) -> None:
    chart = render_tools.write(helm.files(settings()), tmp_path)
    command = [render_tools.program("helm"), "template", chart / "watchkeeper", "--set", wrong]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert wrong.partition("=")[0].rpartition(".")[2] in done.stderr


@pytest.mark.slow
def test_changed_settings_restart_the_hub(tmp_path: Path) -> None:
    def annotation(settings: config.Settings, where: str) -> str:
        chart = render_tools.write(helm.files(settings), tmp_path / where)
        hub = render_tools.objects(template(chart))["StatefulSet/watchkeeper-hub"]
        return str(hub["spec"]["template"]["metadata"]["annotations"]["watchkeeper.dev/settings"])

    other = config.Settings(fleet=config.FleetSettings(cluster="prod-2"))
    assert annotation(settings(), "one") != annotation(other, "two")
