"""What every test gets: quick, repeatable properties, and a machine with fake GPUs where one is asked for."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import postgres_server
from tests.support.fake_nvml import driver

# Derandomised where a failure must mean the commit and not the dice; on a desk new examples are welcome.
# How long an example takes is no property of ours on a machine that others use as well.
hypothesis.settings.register_profile(
    "desk", max_examples=100, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("desk"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Folders of which all tests share servers that are dear: one process runs them all. Elsewhere it runs whole files.
TOGETHER = ("tests/browser", "tests/remediate/drivers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file = item.nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        item.add_marker(pytest.mark.xdist_group(folder if folder in TOGETHER else file))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A command that was run in this process sends logs to a stream that is closed with its test: take that back."""
    ours = logging.getLogger("watchkeeper")
    level, handlers = ours.level, set(logging.root.handlers)
    try:
        return (yield)
    finally:
        ours.setLevel(level)
        for left in [one for one in logging.root.handlers if one not in handlers]:
            if type(left) is logging.StreamHandler:
                logging.root.removeHandler(left)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML, built once."""
    if not driver.has_compiler():
        pytest.skip("gcc is needed to build the fake NVML")
    return driver.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> driver.FakeNvml:
    """Two GPUs of it."""
    return driver.FakeNvml(library, tmp_path / "control", gpus=2)


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Cluster]:
    """A PostgreSQL of our own; whoever stops it starts it again."""
    with postgres_server.running() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=n1", "-addext", "subjectAltName=DNS:n1.example"]
    line = ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(line, check=True, capture_output=True)
    return cert, key
