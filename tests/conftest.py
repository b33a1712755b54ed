"""What every test gets: quick, repeatable properties, and a machine with fake GPUs where one is asked for."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import properties
from tests.support import postgres_server
from tests.support.fake_nvml import driver

properties.load_profile()

# What is collected stays to the end. To look through it again and again costs each process seconds, and each test that
# collects garbage half of one.
gc.disable()

# Folders of which all tests share servers that are dear: one process runs them all. Elsewhere it runs whole files.
TOGETHER = ("tests/browser", "tests/remediate/drivers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first, so that no process is left alone with one."""
    long = [item for item in items if any(item.get_closest_marker(mark) for mark in ("slow", "servers"))]
    weights = Counter(group for group, _ in {(_group(item.nodeid), item.name.partition("[")[0]) for item in long})
    items.sort(key=lambda item: -weights[_group(item.nodeid)])


class _ByGroup(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Not --dist loadgroup: what xdist 3.8 adds to the name of a test for its group, pytest 9.2 does not see."""
    return _ByGroup(config, log)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0]
    return folder if folder in TOGETHER else file


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
