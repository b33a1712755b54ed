"""`render kubernetes`: what kubectl makes of it is valid for today's Kubernetes, least in rights, and complete."""

from __future__ import annotations

import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.support import render_tools
from watchkeeper.clusters.kubernetes import kubernetes_watch
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.remediate.drivers import kubernetes_reclaim
from watchkeeper.render import kubernetes
from watchkeeper.web.auth import auth

# The newest that the validator has; the oldest that is still supported by anyone, for what it knows.
VERSIONS = ("1.37", "1.32")
EVERYTHING = tuple(f"{path}=true" for path, _ in kubernetes.COMPONENTS.values())
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


def settings(*values: str, **fleet: Any) -> config.Settings:
    return config.Settings(
        fleet=config.FleetSettings(cluster="prod-1", **fleet),
        render=config.RenderSettings(values=values, image="registry.example/wk:1"),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every object, as kubectl makes it of the kustomization with all its components."""
    where = render_tools.write(kubernetes.files(settings(*EVERYTHING)), tmp_path_factory.mktemp("kustomize"))
    return render_tools.objects(render_tools.run([render_tools.program("kubectl"), "kustomize", where]))


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["spec"]["template"]["spec"])


@pytest.mark.slow
def test_the_same_settings_give_the_same_files_twice() -> None:
    assert kubernetes.files(settings()) == kubernetes.files(settings())


@pytest.mark.slow
def test_components_are_off_until_a_value_turns_them_on(tmp_path: Path) -> None:
    kubectl = render_tools.program("kubectl")
    plain = render_tools.run([kubectl, "kustomize", render_tools.write(kubernetes.files(settings()), tmp_path)])
    kinds = {one["kind"] for one in render_tools.objects(plain).values()}
    assert not kinds & CUSTOM
    assert not {f"ClusterRole/watchkeeper-{name}" for name in kubernetes.RBAC_COMPONENTS} & set(
        render_tools.objects(plain)
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_for_a_current_kubernetes(built: dict[str, dict[str, Any]], version: str) -> None:
    with render_tools.package("kubernetes_validate") as validator:
        for name, one in built.items():
            if one["kind"] not in CUSTOM:
                assert validator.validate(one, version, strict=True) == version, name


@pytest.mark.slow
def test_custom_resources_fit_the_types_of_their_operator(built: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    custom = [one for one in built.values() if one["kind"] in CUSTOM]
    assert len(custom) > 10
    render_tools.check_custom(custom, "prometheus-operator/monitoring.coreos.com/v1", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", [{"port": 9400}, {"prot": "metrics"}])
def test_a_custom_resource_that_does_not_fit_would_be_found(endpoint: dict[str, Any], tmp_path: Path) -> None:
    wrong = {"kind": "ServiceMonitor", "spec": {"selector": {}, "endpoints": [endpoint]}}
    with pytest.raises(AssertionError):
        render_tools.check_custom([wrong], "prometheus-operator/monitoring.coreos.com/v1", tmp_path)


@pytest.mark.slow
def test_prometheus_accepts_the_rules_of_every_object(built: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    found = [one for one in built.values() if one["kind"] == "PrometheusRule"]
    for one in found:
        (tmp_path / one["metadata"]["name"]).write_text(yaml.safe_dump(one["spec"]))
    said = render_tools.run([servers.require("promtool"), "check", "rules", *tmp_path.iterdir()])
    assert said.count("SUCCESS") == len(found) > 10


@pytest.mark.slow
def test_the_hub_may_list_and_watch_exactly_what_the_code_watches(built: dict[str, dict[str, Any]]) -> None:
    granted = {
        (group, resource)
        for rule in built["ClusterRole/watchkeeper-hub"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == watched()
    assert {verb for rule in built["ClusterRole/watchkeeper-hub"]["rules"] for verb in rule["verbs"]} == {
        "list",
        "watch",
    }


def watched() -> set[tuple[str, str]]:
    """API group and resource of every kind that a KubernetesWatch asks for."""
    nowhere: Any = None
    watch = kubernetes_watch.KubernetesWatch(
        nowhere, cluster="x", time=clock.ScaledClock(), metrics=own_metrics.Registry()
    )
    paths = [kind.kind.path.strip("/").split("/") for kind in watch.kinds]
    return {("" if parts[0] == "api" else parts[1], parts[-1]) for parts in paths}


@pytest.mark.slow
def test_the_hub_runs_without_root_or_powers_on_a_read_only_file_system(built: dict[str, dict[str, Any]]) -> None:
    pod = pod_of(built["StatefulSet/watchkeeper-hub"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    inside = pod["containers"][0]["securityContext"]
    assert inside == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.slow
def test_the_agent_writes_nowhere_but_into_its_state(built: dict[str, dict[str, Any]]) -> None:
    pod = pod_of(built["DaemonSet/watchkeeper-agent"])
    mounts = pod["containers"][0]["volumeMounts"]
    assert {mount["name"] for mount in mounts if not mount.get("readOnly")} == {"state", "tmp"}
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.slow
def test_rights_to_repair_come_with_the_driver_that_needs_them() -> None:
    asked = replace(settings(), remediate=config.RemediateSettings(driver=config.DriverName.KUBERNETES))
    assert "- components/repair\n" in kubernetes.files(asked)[0].text
    assert "- components/repair\n" not in kubernetes.files(settings())[0].text
    rights = render_tools.objects(kubernetes.rbac_manifest("repair").replace("@namespace@", "x"))
    assert rights["ClusterRoleBinding/watchkeeper-repair"]["subjects"][0]["namespace"] == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "reclaim", "is_granted"),
    [("kubernetes", True, True), ("kubernetes", False, False), ("slurm", True, False)],
)
def test_rights_to_take_gpus_back_come_only_where_that_is_switched_on(
    driver: str, reclaim: bool, is_granted: bool
) -> None:
    asked = config.RemediateSettings(driver=config.DriverName(driver), reclaim=reclaim)
    top = kubernetes.files(replace(settings(), remediate=asked))[0].text
    assert ("- components/reclaim\n" in top) is is_granted
    values = yaml.safe_load(kubernetes.values_text(replace(settings(), remediate=asked)))
    assert values["reclaim"]["enabled"] is is_granted


@pytest.mark.slow
def test_who_takes_gpus_back_may_scale_what_the_code_scales_and_delete_nothing(built: dict[str, Any]) -> None:
    rules = built["ClusterRole/watchkeeper-reclaim"]["rules"]
    granted = {(rule["apiGroups"][0], one): set(rule["verbs"]) for rule in rules for one in rule["resources"]}
    paths = [path.split("/") for path, _ in kubernetes_reclaim.SCALE_PATCHES.values()]
    assert granted == {("", "events"): {"create"}} | {(path[2], path[-2]): {"get", "patch"} for path in paths}
    (subject,) = built["ClusterRoleBinding/watchkeeper-reclaim"]["subjects"]
    assert subject["namespace"] == built["ServiceAccount/hub"]["metadata"]["namespace"]


@pytest.mark.slow
def test_an_agent_without_privileges_keeps_nothing_of_them() -> None:
    values = ("agent.privileged=false", "agent.kernelLog=/host/var/log/kern.log")
    text = next(file.text for file in kubernetes.files(settings(*values)) if file.path == "base/agent.yaml")
    container = pod_of(render_tools.objects(text)["DaemonSet/watchkeeper-agent"])["containers"][0]
    assert container["securityContext"]["privileged"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "--kernel-log=/host/var/log/kern.log" in container["args"]


def test_every_mount_of_the_agent_says_why_it_is_there() -> None:
    text = next(file.text for file in kubernetes.files(settings()) if file.path == "base/agent.yaml")
    lines = text[text.index("volumeMounts:") : text.index("volumes:")].splitlines()
    bare = [line for before, line in itertools.pairwise(lines) if "mountPath" in line and "#" not in before]
    # /boot goes with /lib/modules above it, /tmp needs no reason.
    assert {re.search(r"mountPath: (\S+?)[,}]", line)[1] for line in bare} == {"/host/boot", "/tmp"}  # type: ignore[index]


@pytest.mark.slow
def test_the_options_of_the_agent_and_the_hub_exist(built: dict[str, dict[str, Any]]) -> None:
    from watchkeeper.cli.hub import hub
    from watchkeeper.cli.node import agent

    for command, name in ((agent.command, "DaemonSet/watchkeeper-agent"), (hub.command, "StatefulSet/watchkeeper-hub")):
        known = {option for parameter in command.params for option in parameter.opts}
        words = pod_of(built[name])["containers"][0]["args"][1:]
        assert {word.partition("=")[0] for word in words} <= known


@pytest.mark.slow
def test_the_probes_ask_pages_that_need_no_token(built: dict[str, dict[str, Any]]) -> None:
    for name in ("DaemonSet/watchkeeper-agent", "StatefulSet/watchkeeper-hub"):
        container = pod_of(built[name])["containers"][0]
        asked = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert asked == {"/-/healthy", "/-/ready"}
        assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= {
            port["name"] for port in container["ports"]
        }


@pytest.mark.slow
def test_the_settings_of_the_hub_load_and_are_those_of_the_cluster(
    built: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "hub.toml").write_text(built["ConfigMap/watchkeeper-hub"]["data"]["watchkeeper.toml"])
    found = loading.load(tmp_path / "hub.toml")
    assert (found.fleet.cluster, found.fleet.kubernetes, found.hub.port) == ("prod-1", True, 9480)
    assert found.hub.tokens == "/etc/watchkeeper-tokens/tokens"


def test_what_differs_from_the_defaults_goes_along_and_files_of_this_machine_are_named(tmp_path: Path) -> None:
    asked = replace(settings(scrape_interval="30s"), rules=config.RulesSettings(files=("/etc/rules/own.yaml",)))
    text = kubernetes.hub_settings(asked)
    (tmp_path / "hub.toml").write_text(text)
    assert loading.load(tmp_path / "hub.toml").fleet.scrape_interval == "30s"
    assert "# Omitted: files" in text


@pytest.mark.slow
def test_no_rendered_file_holds_a_secret_and_each_secret_is_made_by_the_script(
    built: dict[str, dict[str, Any]],
) -> None:
    assert not [one for one in built.values() if one["kind"] == "Secret"]
    script = next(file for file in kubernetes.files(settings()) if file.path == "secrets.sh")
    named = set(re.findall(r"secretName: (\S+?),|secretKeyRef: \{name: (\S+?),", all_text()))
    assert {first or second for first, second in named} <= set(re.findall(r"watchkeeper-[a-z-]+", script.text))


def all_text() -> str:
    return "".join(file.text for file in kubernetes.files(settings()))


def test_the_script_makes_tokens_that_the_hub_accepts(tmp_path: Path) -> None:
    """With a kubectl that keeps what it is given."""
    where = render_tools.write(kubernetes.files(settings()), tmp_path)
    fake = tmp_path / "bin" / "kubectl"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do\n'
        "case $word in get) exit 1;; --from-file=*) key=${word#*=};; watchkeeper-*) name=$word;; esac\ndone\n"
        f'cat > "{tmp_path}/$name.${{key%%=*}}"\n'
    )
    fake.chmod(0o755)
    said = render_tools.run([where / "secrets.sh", "wk"], env={"PATH": f"{fake.parent}:/usr/bin:/bin"})
    access = auth.load_tokens(tmp_path / "watchkeeper-tokens.tokens")
    admin, agent = (
        access.find_token(said.split()[-1]),
        access.find_token((tmp_path / "watchkeeper-agent-token.token").read_text()),
    )
    assert [found and found.role for found in (admin, agent)] == [auth.Role.ADMIN, auth.Role.AGENT]


@pytest.mark.parametrize("value", ["hub.storage.sizes=1Gi", "hub.maxUnavailable=none", "hub.storage.size"])
def test_a_value_that_does_not_exist_or_fit_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(value.partition("=")[0])):
        kubernetes.files(settings(value))


@pytest.mark.slow
def test_a_chosen_value_stands_in_the_manifests_and_the_comments_stay() -> None:
    text = kubernetes.values_text(settings("hub.storage.size=200Gi", "network.readers=[observability, ops]"))
    assert yaml.safe_load(text)["hub"]["storage"]["size"] == "200Gi"
    assert "observability" in next(
        file.text
        for file in kubernetes.files(settings("network.readers=[observability, ops]"))
        if file.path == "base/network.yaml"
    )
    assert text.count("#") == kubernetes.values_text(settings()).count("#")


@pytest.mark.slow
def test_scripts_pass_the_linter(tmp_path: Path) -> None:
    where = render_tools.write(kubernetes.files(settings()), tmp_path)
    render_tools.run([render_tools.program("shellcheck"), where / "secrets.sh"])
    assert subprocess.run(["sh", "-n", where / "secrets.sh"], check=False).returncode == 0
