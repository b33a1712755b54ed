"""An existing prometheus.yml: what becomes of its jobs, and what is said about the rest."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.loopback import reply, serve
from tests.support.scraped import Kept
from watchkeeper.errors import CollectError
from watchkeeper.net import access, http
from watchkeeper.scrape import jobs, prometheus_config
from watchkeeper.scrape.discovery import Discovery
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import LabelLimits
from watchkeeper.scrape.scrape import ScrapeSettings, TargetHealth, TargetLoop

NOW = datetime(2026, 3, 1, 9, 14, tzinfo=UTC)
FILE = """
global:
  scrape_interval: 30s
  external_labels: {cluster: blue}
rule_files: [rules/*.yml]
scrape_configs:
- job_name: dcgm
  scrape_interval: 5s
  scrape_timeout: 20s
  metrics_path: /gpu
  params: {collect: [a, b]}
  honor_labels: true
  honor_timestamps: false
  sample_limit: 1000
  body_size_limit: 10MB
  static_configs:
  - targets: [n1:9400, n2:9400]
    labels: {rack: r7}
  relabel_configs:
  - {source_labels: [__address__], regex: 'n2:.*', action: drop}
  - {source_labels: [__address__], regex: '(.*):\\d+', target_label: instance}
  - {source_labels: [__param_collect], target_label: __param_collect, replacement: c}
- job_name: nodes
  scheme: https
  file_sd_configs: [{files: ['sd/*.yml', 'sd/*.json']}]
  kubernetes_sd_configs: [{role: node}]
  colour: red
- job_name: broken
  relabel_configs: [{action: explode}]
- job_name: names
  dns_sd_configs: [{names: [localhost], type: A, port: 9100}, {names: [x.example], type: MX}]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "sd").mkdir()
    (tmp_path / "sd" / "a.yml").write_text("- targets: ['n3:9100']\n  labels: {__meta_watchkeeper_node: n3}\n")
    (tmp_path / "sd" / "b.json").write_text(json.dumps([{"targets": ["n4:9100"]}]))
    path = tmp_path / "prometheus.yml"
    path.write_text(FILE)
    return path


def test_a_job_says_how_its_targets_are_read(path: Path) -> None:
    job = prometheus_config.load(path).jobs[0]
    assert (job.name, job.interval_seconds, job.timeout_seconds, job.honor_labels) == ("dcgm", 5.0, 5.0, True)
    assert (job.honor_timestamps, job.max_series, job.max_body_bytes) == (False, 1000, 10 * 2**20)


@pytest.mark.parametrize(
    ("interval", "timeout", "waits"), [(5.0, 20.0, 5.0), (20.0, 5.0, 5.0), (5.0, None, None), (None, 20.0, 20.0)]
)
def test_no_target_is_waited_for_longer_than_its_interval(
    interval: float | None, timeout: float | None, waits: float | None
) -> None:
    job = jobs.ScrapeJob("dcgm", interval_seconds=interval, timeout_seconds=timeout)
    target = jobs.build_target("n1:9400", {}, job, node=None, cluster="main")
    assert isinstance(target, jobs.Target)
    assert (target.interval_seconds, target.timeout_seconds) == (interval, waits)


def test_what_is_not_known_is_named_with_its_line_and_the_rest_counts(path: Path) -> None:
    config = prometheus_config.load(path)
    assert [job.name for job in config.jobs] == ["dcgm", "nodes", "names"]
    problems = {int(problem.removeprefix(f"{path}:").partition(":")[0]): problem for problem in config.problems}
    assert "kubernetes_sd is not supported" in problems[26]
    assert "`colour` is not supported" in problems[27]
    assert "job broken skipped: relabel action 'explode'" in problems[28]
    assert "dns_sd of type MX" in problems[31]


def test_discovery_gives_the_targets_of_all_jobs(path: Path) -> None:
    discovered = asyncio.run(Discovery([], config=path).refresh(NOW))
    by_url = {target.url: target for target in discovered.targets}
    assert sorted(by_url) == [
        "http://127.0.0.1:9100/metrics",
        "http://n1:9400/gpu?collect=c&collect=b",
        "https://n3:9100/metrics",
        "https://n4:9100/metrics",
    ]
    first = by_url["http://n1:9400/gpu?collect=c&collect=b"]
    assert dict(first.labels) == {"job": "dcgm", "instance": "n1", "rack": "r7", "cluster": "blue"}
    assert first.interval_seconds == 5.0
    assert by_url["https://n3:9100/metrics"].labels["instance"] == "n3"
    assert by_url["https://n4:9100/metrics"].discovered["__meta_filepath"].endswith("b.json")
    assert [target.discovered["__address__"] for target in discovered.dropped] == ["n2:9400"]
    assert [node.name for node in discovered.nodes] == ["n3"]


def test_an_edited_file_counts_at_the_next_refresh_and_a_broken_one_does_not(path: Path) -> None:
    discovery = Discovery([], config=path)
    asyncio.run(discovery.refresh(NOW))
    path.write_text("scrape_configs: [{job_name: x, static_configs: [{targets: ['n9:1']}]}]")
    os.utime(path, ns=(1, 1))
    assert [target.address for target in asyncio.run(discovery.refresh(NOW)).targets] == ["n9:1"]
    path.write_text("scrape_configs: [")
    assert [target.address for target in asyncio.run(discovery.refresh(NOW)).targets] == ["n9:1"]
    assert "The 1 jobs read before stay in force" in discovery.problems()[0]


def test_a_file_that_was_away_for_a_moment_is_no_problem_any_more(path: Path) -> None:
    discovery = Discovery([], config=path)
    jobs = asyncio.run(discovery.refresh(NOW)).targets
    before = discovery.problems()
    path.rename(path.with_suffix(".away"))
    assert asyncio.run(discovery.refresh(NOW)).targets == jobs
    assert "cannot be read: No such file" in discovery.problems()[0]
    path.with_suffix(".away").rename(path)
    asyncio.run(discovery.refresh(NOW))
    assert discovery.problems() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[", "not YAML"), ("- a", "not a Prometheus configuration"), ("global: {scrape_interval: 5}", "has no unit")],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.yml"
    path.write_text(text)
    with pytest.raises(CollectError, match=problem):
        prometheus_config.load(path)


def test_rule_files_are_found_from_where_the_file_is(path: Path) -> None:
    (path.parent / "rules").mkdir()
    (path.parent / "rules" / "a.yml").write_text("groups: []")
    assert prometheus_config.rule_paths(path) == [path.parent / "rules" / "a.yml"]


def test_credentials_are_read_from_their_files_at_each_use(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    basic = access.Access(username="u", password_file=str(secret))
    assert basic.authorization_header() == {"Authorization": "Basic " + base64.b64encode(b"u:first").decode()}
    secret.write_text("second\n")
    assert access.Access(credentials_file=str(secret)).authorization_header() == {"Authorization": "Bearer second"}
    assert access.NO_ACCESS.authorization_header() == {}
    secret.unlink()
    with pytest.raises(CollectError, match="the secret cannot be read"):
        basic.authorization_header()


def test_a_redirect_to_another_host_does_not_get_the_credentials() -> None:
    async def story() -> None:
        async with serve(lambda _: reply("there")) as other:
            away = reply(status=302, Location=f"{other.origin}/x")
            async with serve(lambda _: away) as first:
                connection = http.Connection()
                await connection.send(http.HttpRequest(first.origin, headers={"Authorization": "Bearer t"}))
                await connection.aclose()
            assert first.heard[0].headers["authorization"] == "Bearer t"
            assert "authorization" not in other.heard[0].headers

    asyncio.run(story())


def test_headers_of_a_job_are_sent_and_stay_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k-1\n")
    path = tmp_path / "prometheus.yml"
    headers = "{X-Scope-OrgID: {values: [a, b]}, X-Key: {files: [key], secrets: [s]}}"

    async def story() -> None:
        async with serve(lambda _: reply("x 1\n")) as other:
            away = reply(status=302, Location=f"{other.origin}/x")
            async with serve(lambda _: away) as first:
                static = f"static_configs: [{{targets: ['{first.address}']}}]"
                path.write_text(f"scrape_configs:\n- job_name: a\n  http_headers: {headers}\n  {static}\n")
                [target] = (await Discovery([], config=path).refresh(NOW)).targets
                loop = TargetLoop(target, ScrapeSettings(), sink=Kept(), inventory=ScrapedInventory())
                assert (await loop.scrape(1000)).health is TargetHealth.UP
                await loop.close(2000)
            first_headers, other_headers = first.heard[0].headers, other.heard[0].headers
        assert (first_headers["x-scope-orgid"], first_headers["x-key"]) == ("a, b", "s, k-1")
        assert not {"x-scope-orgid", "x-key"} & other_headers.keys()

    asyncio.run(story())


def test_an_http_list_of_a_job_is_asked_with_its_credentials(tmp_path: Path) -> None:
    async def story() -> None:
        async with serve(lambda _: reply('[{"targets": ["n1:1"]}]')) as server:
            path = tmp_path / "p.yml"
            path.write_text(
                "scrape_configs:\n- job_name: j\n  http_sd_configs:\n"
                f"  - url: {server.origin}/sd\n    authorization: {{credentials: t}}\n"
            )
            discovered = await Discovery([], config=path).refresh(NOW)
            assert discovered.targets[0].discovered["__meta_url"] == f"{server.origin}/sd"
            assert server.heard[0].headers["authorization"] == "Bearer t"

    asyncio.run(story())


def asking_for_certificates(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    tls.load_verify_locations(certificate[0])
    tls.verify_mode = ssl.CERT_REQUIRED
    return tls


@pytest.mark.parametrize(
    ("settings", "is_let_in"),
    [
        ("ca_file: CERT, server_name: n1.example, cert_file: CERT, key_file: KEY", True),
        ("insecure_skip_verify: true, cert_file: CERT, key_file: KEY", True),
        ("ca_file: CERT, cert_file: CERT, key_file: KEY", False),
        ("ca_file: CERT, server_name: n1.example", False),
        ("cert_file: CERT, key_file: KEY", False),
        ("ca_file: nowhere", False),
    ],
)
def test_tls_is_spoken_as_the_job_says(
    tmp_path: Path, certificate: tuple[Path, Path], settings: str, is_let_in: bool
) -> None:
    tls = asking_for_certificates(certificate)
    cert, key = certificate
    chosen = settings.replace("CERT", str(cert)).replace("KEY", str(key))

    async def story() -> None:
        async with serve(lambda _: reply("a 1\n"), tls=tls) as server:
            path = tmp_path / "p.yml"
            job = f"{{job_name: j, scheme: https, tls_config: {{{chosen}}}, static_configs: [{{targets: [A]}}]}}"
            path.write_text(f"scrape_configs: [{job}]".replace("[A]", f"['{server.address}']"))
            (target,) = (await Discovery([], config=path).refresh(NOW)).targets
            loop = TargetLoop(target, ScrapeSettings(), sink=Kept(), inventory=ScrapedInventory())
            state = await loop.scrape(1000)
            assert (state.health is TargetHealth.UP) is is_let_in, state.error
            await loop.close(2000)

    asyncio.run(story())


LIMITS = """
global:
  scrape_interval: 15s
  sample_limit: 7
  label_limit: 30
  target_limit: 1
  metric_name_validation_scheme: legacy
scrape_configs:
- job_name: &name a
  sample_limit: 9
  metric_name_escaping_scheme: values
  scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]
  static_configs: &two [{targets: [n1:1, n2:1]}]
- job_name: b
  target_limit: 2
  label_value_length_limit: 99
  static_configs: *two
"""


def test_what_global_says_holds_for_every_job_that_says_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(LIMITS)
    config = prometheus_config.load(path)
    assert config.problems == ()
    first, second = config.jobs
    assert (first.max_series, second.max_series) == (9, 7)
    assert (first.label_limits, second.label_limits) == (LabelLimits(30), LabelLimits(30, 0, 99))
    assert (first.escaping, second.escaping) == ("values", "underscores")
    assert first.protocols == ("PrometheusText0.0.4", "OpenMetricsText1.0.0")
    assert second.protocols[0] == "OpenMetricsText1.0.0"


def test_a_job_with_more_targets_than_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(LIMITS)
    discovery = Discovery([], config=path)
    discovered = asyncio.run(discovery.refresh(NOW))
    assert {target.job_name for target in discovered.targets} == {"b"}
    assert discovery.problems() == ["job a: 2 targets, its target_limit is 1; none is scraped"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tls_config: {min_version: TLS13}", "tls_config: `min_version` is not supported and ignored"),
        ("basic_auth: {username_file: u}", "basic_auth: `username_file` is not supported"),
        ("authorization: secret", "job a skipped: `authorization` must be a table, found 'secret'"),
        ("relabel_configs: [{source: [x], target_label: y}]", "relabel rule: `source` is not supported"),
        ("static_configs: [{targets: [], label: {a: b}}]", "job a: static_configs: `label` is not supported"),
        ("http_sd_configs: [{url: 'http://x', method: POST}]", "job a: http_sd_configs: `method` is not supported"),
        ("convert_classic_histograms_to_nhcb: true", "`convert_classic_histograms_to_nhcb: true` is ignored"),
        ("follow_redirects: false", "`follow_redirects: false` is ignored; one redirect is followed"),
        ("kubernetes_sd_configs: [{role: pod}]", "skipped; `fleet.kubernetes` watches the cluster"),
        ("consul_sd_configs: [{server: x}]", "skipped; write its targets to a list for file_sd or http_sd"),
        ("http_headers: {Host: {values: [x]}}", "job a skipped: http_headers: 'Host' is not allowed, or has no"),
        ("scrape_protocols: [Json]", "job a skipped: scrape_protocols has 'Json'; supported: PrometheusProto,"),
        ("metric_name_escaping_scheme: x", "metric_name_escaping_scheme must be one of allow-utf-8, underscores"),
    ],
)
def test_an_unsupported_key_is_reported_with_the_alternative(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(f"scrape_configs:\n- job_name: a\n  {text}\n")
    [problem] = prometheus_config.load(path).problems
    assert expected in problem


def test_keys_with_prometheus_own_defaults_are_as_good_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    defaults = (
        "follow_redirects: true, enable_http2: false, native_histogram_bucket_limit: 0, enable_compression: false"
    )
    path.write_text(f"x: &d {{{defaults}}}\nscrape_configs:\n- job_name: a\n  scheme: https\n  <<: *d\n")
    config = prometheus_config.load(path)
    assert (config.problems, config.jobs[0].scheme) == ((), "https")
