"""Memory for watching a Kubernetes cluster: a process that lists and watches its nodes and pods.

The API server is the stand-in of the tests, with objects as large as real ones: nodes with all labels of NFD and GFD,
pods with environment, volumes and managed fields. After the lists it sends changes and sometimes ends a watch; `lists`
must stay at one for each kind, six in total.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from tests.support.clusters.api_server import NODES, PODS, ApiServer, Raw, node, pod, serving

GPUS = 8
NODE_LABELS = {f"feature.node.kubernetes.io/cpu-cpuid.FLAG{number:03d}": "true" for number in range(110)}
GPU_LABELS = {f"nvidia.com/gpu.fact{number:02d}": f"value-{number}" for number in range(35)}
IMAGES = [{"names": [f"registry.example/image-{number}@sha256:{number:064d}"], "sizeBytes": 1} for number in range(50)]
ENVIRONMENT = [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(40)]
VOLUMES = [{"name": f"volume-{number}", "configMap": {"name": f"map-{number}"}} for number in range(8)]
MANAGED = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{number}": {} for number in range(150)}}]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=8000, help="number of pods; every second one has GPUs")
    parser.add_argument("--changes", type=int, default=5000, help="changes after the initial lists")


def measure(options: argparse.Namespace) -> dict[str, float]:
    return asyncio.run(_measure(options))


async def _measure(options: argparse.Namespace) -> dict[str, float]:
    server = ApiServer()
    server.fill(NODES, [_node(number) for number in range(options.nodes)])
    server.fill(PODS, [_pod(number, options.nodes) for number in range(options.pods)])
    sizes = [len(json.dumps(raw)) for path in (NODES, PODS) for raw in server.objects[path].values()]
    async with serving(server):
        command = ["-m", "bench._kubernetes_watcher", server.url, server.token, str(options.changes)]
        child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        listed = json.loads(await child.stdout.readline())
        started_at = time.perf_counter()
        for number in range(options.changes):
            server.put(PODS, _pod(number % options.pods, options.nodes))
            if number % 100 == 0:
                await asyncio.sleep(0)
            if number in (options.changes // 3, options.changes // 2):
                server.end(PODS, abort=number == options.changes // 2)
        changed = json.loads(await child.stdout.readline())
        seconds = time.perf_counter() - started_at
        await child.wait()
    numbers = {
        "nodes": options.nodes,
        "pods": options.pods,
        "json_megabytes": sum(sizes) / 2**20,
        **listed,
        "changes": options.changes,
        "changes_seconds": seconds,
        **changed,
        "load_average": os.getloadavg()[0],
    }
    return {name: round(value, 3) for name, value in numbers.items()}


def _node(number: int) -> Raw:
    labels = {
        **NODE_LABELS,
        **GPU_LABELS,
        "nvidia.com/gpu.count": str(GPUS),
        "topology.kubernetes.io/rack": f"r{number // 8}",
    }
    raw = node(f"gpu-node-{number:05d}.cluster.example", gpus=GPUS, labels=labels)
    raw["metadata"]["managedFields"] = MANAGED
    raw["status"]["images"] = IMAGES
    return raw


def _pod(number: int, nodes: int) -> Raw:
    has_gpus = number % 2 == 0
    raw = pod(
        f"training-run-{number // 16:04d}-worker-{number:05d}",
        gpus=GPUS // 4 if has_gpus else 0,
        node=f"gpu-node-{number % nodes:05d}.cluster.example",
        namespace=f"team-{number % 40}",
        startTime="2026-11-15T05:01:00Z",
        containerStatuses=[{"name": "main", "restartCount": 0, "imageID": f"sha256:{number:064d}"}],
    )
    owner: dict[str, Any] = {"kind": "Job", "name": f"training-run-{number // 16:04d}", "controller": True}
    metadata = {
        "ownerReferences": [owner],
        "labels": {"job-name": owner["name"], "app": "train"},
        "managedFields": MANAGED,
    }
    raw["metadata"] |= metadata
    raw["spec"]["containers"][0] |= {"env": ENVIRONMENT, "image": "registry.example/train:1"}
    raw["spec"]["volumes"] = VOLUMES
    return raw
