"""TrainingMonitor: reported values are exported, others are absent, and bad values become events."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.instrument import pages
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import ModelCost, TrainingMonitor


def monitor(rank: int = 0, **more: object) -> TrainingMonitor:
    place = Placement(rank, 4, node="gpu-7", gpu="1", uuid="GPU-8a", restarts=2)
    return TrainingMonitor("llama", Exports(), place=place, **more)  # type: ignore[arg-type]


def names(made: TrainingMonitor) -> set[str]:
    return {str(labels["__name__"]) for labels in pages.series(made)}


def test_a_training_loop_is_exported_with_the_guides_names_and_labels() -> None:
    made = monitor()
    for batch in made.batches([[1, 2], [3, 4]]):
        with made.forward():
            pass
        made.step(loss=0.5, grad_norm=1.5, learning_rate=3e-4, samples=len(batch), tokens=100)
    made.report(validation_loss=0.75, epoch=1)
    expected = {
        "training_loss": 0.5, "training_grad_norm": 1.5, "training_learning_rate": 3e-4, "training_epoch": 1,
        "training_validation_loss": 0.75,
        "training_iterations_total": 2, "training_samples_total": 4, "training_tokens_total": 200,
        "training_world_size": 4, "training_restarts_total": 2, "training_step": 2, "training_paused": 0,
    }  # fmt: skip
    values = {name: pages.value(made, name, job_name="llama", rank="0", world_size="4") for name in expected}
    assert values == expected


def test_every_rank_has_its_heartbeat_and_rank_0_the_rest() -> None:
    first, second, both = monitor(), monitor(1), monitor(1, tells_all=True)
    for made in (first, second, both):
        made.step(loss=1.0, samples=2)
    heartbeat = {"training_last_step_timestamp_seconds", "training_step_compute_seconds", "training_rank_info"}
    assert heartbeat <= names(second)
    assert "training_loss" not in names(second)
    assert names(first) == names(both) == names(second) | {
        "training_loss", "training_samples_total", "training_samples_per_second", "training_checkpoint_starts_total",
        "training_checkpoint_writes_total", "training_checkpoint_failures_total",
        "training_step_duration_seconds_bucket",
        "training_step_duration_seconds_sum", "training_step_duration_seconds_count",
    }  # fmt: skip


def test_a_value_that_was_never_reported_is_absent_and_zero_is_a_reading() -> None:
    made = monitor()
    assert "training_last_step_timestamp_seconds" not in names(made)
    assert not names(made) & {"training_loss", "training_grad_norm", "training_model_flops_utilization"}
    made.step(loss=0.0)
    assert pages.value(made, "training_loss") == 0.0


def test_the_node_and_gpu_of_a_rank_are_exported() -> None:
    assert pages.value(monitor(3), "training_rank_info", rank="3", Hostname="gpu-7", gpu="1", UUID="GPU-8a") == 1


def test_a_loss_that_is_not_finite_is_one_event_with_its_step_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    made = monitor(2)
    for loss in (1.0, math.nan, math.inf, 1.0, math.nan):
        made.step(loss=loss)
    kind = "loss_not_finite"
    assert pages.value(made, "training_events_total", kind=kind) == 2
    assert pages.value(made, "training_event_step", kind=kind) == 5
    assert pages.value(made, "training_event_timestamp_seconds", kind=kind) == pytest.approx(made.progress.last_step_at)
    assert [record.getMessage() for record in caplog.records] == [
        "[rank2] step 2 loss: nan",
        "[rank2] step 5 loss: nan",
    ]


def test_a_gradient_norm_ten_times_the_usual_is_a_spike_after_the_warm_up() -> None:
    made = monitor()
    for norm in [50.0, *[1.0] * 40, 30.0, 1.0, math.inf]:
        made.step(grad_norm=norm)
    assert pages.value(made, "training_events_total", kind="grad_norm_spike") == 1
    assert pages.value(made, "training_event_step", kind="grad_norm_spike") == 42
    assert pages.value(made, "training_events_total", kind="grad_norm_not_finite") == 1


def test_values_that_are_reported_before_a_step_ends_belong_to_that_step() -> None:
    made = monitor()
    made.step()
    made.report(loss=math.nan)
    made.step()
    assert pages.value(made, "training_event_step", kind="loss_not_finite") == 2


class GpuTensor:
    """What PyTorch's tensors do, as far as a monitor cares: reading waits for the GPU."""

    class device:
        type = "cuda"

    def __init__(self, number: float) -> None:
        self.number, self.reads = number, 0

    def detach(self) -> GpuTensor:
        return self

    def __float__(self) -> float:
        self.reads += 1
        return self.number


def test_a_tensor_on_a_gpu_is_read_once_a_second_and_not_at_each_step() -> None:
    made = monitor()
    tensors = [GpuTensor(float(number)) for number in range(50)]
    for tensor in tensors:
        made.step(loss=tensor)
    assert sum(tensor.reads for tensor in tensors) == 1
    assert pages.value(made, "training_loss") == 0.0


def test_number_duration_and_size_of_a_checkpoint_are_recorded(tmp_path: Path) -> None:
    made = monitor()
    with made.checkpoint(tmp_path):
        (tmp_path / "model").write_bytes(bytes(300))
        (tmp_path / "optimizer").write_bytes(bytes(700))
        assert pages.value(made, "training_paused") == 1
    assert pages.value(made, "training_checkpoint_bytes") == 1000
    assert pages.value(made, "training_checkpoint_writes_total") == 1
    assert pages.value(made, "training_checkpoint_last_success_timestamp_seconds") is not None


def test_a_failed_checkpoint_is_counted_and_its_error_is_raised() -> None:
    made = monitor()
    with pytest.raises(OSError, match="full"), made.checkpoint():
        raise OSError("full")
    assert pages.value(made, "training_checkpoint_failures_total") == 1
    assert pages.value(made, "training_checkpoint_writes_total") == 0
    assert "training_checkpoint_last_success_timestamp_seconds" not in names(made)


def test_model_utilisation_is_flops_by_time_and_peak() -> None:
    cost = ModelCost(peak_flops=1e12, flops_per_token=6e9)
    assert cost.utilisation(samples=0, tokens=50) == pytest.approx(0.3)
    made = monitor(cost=cost)
    made.step(tokens=10)
    assert (pages.value(made, "training_model_flops_utilization") or 0) > 0


@pytest.mark.parametrize("wrong", [{"peak_flops": 1.0}, {"peak_flops": 0.0, "flops_per_token": 1.0}])
def test_an_invalid_cost_says_what_to_set(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="ModelCost"):
        ModelCost(**wrong)


def test_a_program_that_fails_logs_its_step(caplog: pytest.LogCaptureFixture) -> None:
    made = monitor(1)
    made.step()
    with pytest.raises(ZeroDivisionError), made:
        raise ZeroDivisionError("oh")
    assert caplog.messages == ["[rank1] llama ended at step 1: ZeroDivisionError: oh"]


def test_names_that_are_long_or_odd_stay_one_readable_line() -> None:
    made = TrainingMonitor('a"b\\c\nd' + "x" * 500, Exports(), place=Placement())
    job_names = {labels["job_name"] for labels in pages.series(made)}
    assert job_names == {('a"b\\c\nd' + "x" * 500)[:120]}


def test_importing_the_monitors_imports_nothing_else() -> None:
    program = (
        "import sys\nimport watchkeeper.instrument.training, watchkeeper.instrument.asgi\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules if name.split('.')[0] in sys.argv}"
        " | {name for name in sys.modules if name.startswith('watchkeeper.')}))"
    )
    heavy = ["torch", "numpy", "lightning", "transformers", "mlflow", "wandb", "opentelemetry", "pynvml", "starlette"]
    ran = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True)
    assert not [name for name in ran.stdout.split() if not name.startswith("watchkeeper.instrument")]
