"""One real cluster of each kind for all stories about drivers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clusters import kubernetes_server, slurm_cluster


@pytest.fixture(scope="package")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes_server.Cluster]:
    kubernetes_server.require()
    with kubernetes_server.running(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(scope="package")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Cluster]:
    slurm_cluster.require_all()
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm"), nodes=3) as running:
        yield running
