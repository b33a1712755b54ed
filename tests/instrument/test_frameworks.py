"""The monitor in real loops: PyTorch, Lightning, Hugging Face's Trainer; and the barrier that names nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.instrument import pages
from tests.support import torch_python
from watchkeeper.instrument.optional import PackageMissing
from watchkeeper.instrument.training import TrainingMonitor

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(180)]
BEGIN = """
import sys, warnings
import torch
from torch import nn
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.training import TrainingMonitor
torch.set_num_threads(1)
monitor = TrainingMonitor("llama", Exports())
"""
END = """
page = MetricsPage()
monitor.write(page)
print("PAGE")
print(page.encode().decode())
"""


def page(program: str, folder: Path, *needs: str) -> dict[str, float]:
    """Series of the program's page at its end: by name, and by name and phase."""
    output = torch_python.run(BEGIN + program + END, folder=folder, needs=needs).partition("PAGE\n")[2]
    rows = pages.read(output.encode()).items()
    return {" ".join(filter(None, (labels["__name__"], labels.get("phase")))): value for labels, value in rows}


def test_a_pytorch_loop_is_measured_by_hooks(tmp_path: Path) -> None:
    program = """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
monitor.watch(model, optimizer)
for batch in monitor.batches(torch.randn(6, 4, 8)):
    loss = model(batch).square().mean()
    monitor.report(loss=loss)
    monitor.add_samples(samples=len(batch))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with monitor.validation():
    monitor.report(validation_loss=model(batch).square().mean())
"""
    series = page(program, tmp_path)
    assert series["training_iterations_total"] == 6
    assert series["training_samples_total"] == 24
    assert series["training_learning_rate"] == 0.25
    assert {"training_loss", "training_validation_loss"} <= series.keys()
    assert all(series[f"training_phase_seconds_total {phase}"] > 0 for phase in ("forward", "backward", "optimizer"))


def test_lightning_is_one_line(tmp_path: Path) -> None:
    program = """
import lightning
from torch.utils.data import DataLoader
class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)
    def training_step(self, batch, index):
        return self.inner(batch).square().mean()
    def validation_step(self, batch, index):
        self.log("val_loss", self.inner(batch).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
                            enable_model_summary=False, callbacks=[monitor.lightning()], default_root_dir=".")
loader = DataLoader(torch.randn(20, 8), batch_size=4)
trainer.fit(Small(), loader, loader)
"""
    series = page(program, tmp_path, "lightning")
    assert (series["training_iterations_total"], series["training_samples_total"], series["training_epoch"]) == (
        10,
        40,
        1,
    )
    assert series["training_learning_rate"] == 0.25
    assert {"training_loss", "training_validation_loss", "training_checkpoint_bytes"} <= series.keys()
    assert series["training_checkpoint_writes_total"] >= 1
    phases = ("data", "forward", "backward", "validation", "checkpoint")
    assert all(series[f"training_phase_seconds_total {phase}"] > 0 for phase in phases)


def test_hugging_faces_trainer_is_one_line(tmp_path: Path) -> None:
    program = """
from transformers import Trainer, TrainingArguments
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)
    def forward(self, x, labels=None):
        answer = self.inner(x)
        return {"loss": (answer - labels).square().mean(), "logits": answer}
rows = [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(24)]
arguments = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, logging_steps=1, save_steps=3,
                              eval_steps=3, eval_strategy="steps", use_cpu=True, report_to=[], disable_tqdm=True)
Trainer(Small(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[monitor.hugging_face()]).train()
"""
    series = page(program, tmp_path, "transformers", "accelerate")
    assert (series["training_iterations_total"], series["training_samples_total"]) == (6, 24)
    assert {"training_loss", "training_validation_loss", "training_grad_norm", "training_epoch"} <= series.keys()
    assert series["training_checkpoint_writes_total"] == series["training_checkpoint_starts_total"] == 2
    assert series["training_checkpoint_bytes"] > 0
    phases = ("forward", "backward", "optimizer", "validation", "checkpoint")
    assert all(series[f"training_phase_seconds_total {phase}"] > 0 for phase in phases)


TWO_RANKS = """
import json, os, time
import torch
import torch.distributed as dist
from torch import multiprocessing
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.step_clock import Phase
from watchkeeper.instrument.training import TrainingMonitor
torch.set_num_threads(1)

def start(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainingMonitor("llama", Exports())
    monitor.watch(model, optimizer)
    monitor.watch_communication(model)
    for _ in range(8):
        with model.no_sync():
            model(torch.randn(4, 8)).sum().backward()
        time.sleep(0.2 * rank)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    with open(f"rank{rank}.json", "w") as kept:
        json.dump(monitor.clock.totals[Phase.COMMUNICATION], kept)
    dist.destroy_process_group()

context = multiprocessing.get_context("fork")
ranks = [context.Process(target=start, args=(rank, os.path.abspath("store"))) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""


def test_a_rank_that_is_on_time_waits_for_the_straggler(tmp_path: Path) -> None:
    torch_python.run(TWO_RANKS, folder=tmp_path)
    waited = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    # Eight times two tenths of a second, less what else holds the ranks up.
    assert waited[0] - waited[1] > 0.3, waited


BARRIER = """
import json, os, sys, time
import torch.distributed as dist
from torch import multiprocessing
from watchkeeper.instrument.barrier import BarrierBroken, barrier_report
from watchkeeper.instrument.placement import Placement

def start(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=4)
    place = Placement(rank, 4, node=f"gpu-{rank // 2}", gpu=str(rank % 2), uuid=f"GPU-{rank}")
    barrier_report(place=place, timeout_seconds=60)
    if rank in (1, 3):
        time.sleep(float(sys.argv[1]))
        os._exit(0)
    time.sleep(float(sys.argv[2]))
    try:
        barrier_report(place=place, timeout_seconds=2)
    except BarrierBroken as broken:
        with open(f"rank{rank}.json", "w") as kept:
            missing = [[one.rank, one.node, one.uuid] for one in broken.missing]
            json.dump({"text": str(broken), "missing": missing}, kept)

context = multiprocessing.get_context("fork")
ranks = [context.Process(target=start, args=(rank, os.path.abspath("store"))) for rank in range(4)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""


@pytest.mark.parametrize(
    ("die_after", "come_after"),
    [
        pytest.param("6", "0", id="they hang"),
        # Rank 0 finds their connections closed, and Gloo's error names no rank.
        pytest.param("0", "1", id="they died before the barrier"),
    ],
)
def test_a_barrier_names_the_nodes_of_missing_ranks(tmp_path: Path, die_after: str, come_after: str) -> None:
    torch_python.run(BARRIER, die_after, come_after, folder=tmp_path)
    for rank in (0, 2):
        answer = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert answer["missing"] == [[1, "gpu-0", "GPU-1"], [3, "gpu-1", "GPU-3"]]
        assert "2 ranks are missing: rank 1 on gpu-0 GPU 1 GPU-1; rank 3 on gpu-1 GPU 1 GPU-3. Check" in answer["text"]


@pytest.mark.parametrize("ask", [TrainingMonitor.lightning, TrainingMonitor.hugging_face])
def test_a_missing_framework_is_an_error_with_the_install_command(ask: object) -> None:
    with pytest.raises(PackageMissing, match=r"pip install (lightning|transformers)"):
        ask(TrainingMonitor("llama"))  # type: ignore[operator]
