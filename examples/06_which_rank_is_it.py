"""Break a training job of four ranks in four ways, and have Watchkeeper say which rank it was.

`python examples/06_which_rank_is_it.py [PYTHON]`: PYTHON is an interpreter with PyTorch, where this one has none; the
command `scripts/torch` makes one. The slow rank is found by the ranks' own pages, as `watchkeeper explain job` does it,
and the others by their logs, as `watchkeeper doctor` does it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from watchkeeper.diagnose import job
from watchkeeper.doctor import examine
from watchkeeper.model.samples import Sample
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.readers import bundles
from watchkeeper.readers.exposition import ExpositionParser
from watchkeeper.store.head.head import Head

PROGRAM = Path(__file__).with_name("05_train_on_four_ranks.py")
RANKS, ENOUGH_STEPS, PATIENCE_SECONDS = 4, 8, 120


def scrape(folder):
    """One page for each rank that has announced itself, or None while not all have done enough steps."""
    pages = []
    for listed in folder.glob("*.json"):
        address = json.loads(listed.read_text())[0]["targets"][0]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            pages.append(answer.read())
    enough = [page for page in pages if int(page.split(b"training_iterations_total{")[1].split()[1]) >= ENOUGH_STEPS]
    return enough if len(enough) == RANKS else None


def ask_pages(folder):
    """The product's own question about a job, over samples of one scrape."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (pages := scrape(folder)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    engine, now = EmbeddedEngine(Head()), datetime.now(UTC)
    at_ms = int(now.timestamp() * 1000)
    for page in pages:
        parser = ExpositionParser()
        read = parser.parse(page)
        rows = zip(read.handles, read.values, strict=True)
        engine.appender.append(
            Sample(parser.labels[handle].with_labels(cluster="main"), at_ms, value) for handle, value in rows
        )
    query = job.JobQuery("main", "four-ranks")
    return job.explain(query, job.read_job(engine, query, now), now, node_events=[], names=str)


def main():
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faults = ["slow", "die", "diverge", "wrong-shape"]
        with subprocess.Popen([python, PROGRAM, folder, *faults], stdout=subprocess.DEVNULL, env=environment):
            diagnosis = ask_pages(folder / "slow")
        print(f"slow: {diagnosis.cause}: {diagnosis.why}")
        for fault in faults[1:]:
            finding = examine.examine(bundles.open_all(sorted((folder / fault).glob("*.log")))).findings[0]
            print(f"{fault}: {finding.cause}: rank {finding.where['culprit_rank']}: {finding.why}")


if __name__ == "__main__":
    main()
