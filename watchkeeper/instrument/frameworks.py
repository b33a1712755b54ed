"""Connects the training monitor to PyTorch loops, Lightning, and Hugging Face's Trainer.

A framework reports only when a phase starts, so each of its calls moves the clock to the next phase. No framework is
imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.instrument import optional
from watchkeeper.instrument.step_clock import GpuWait, Phase, StepClock

if TYPE_CHECKING:
    from watchkeeper.instrument.training import TrainingMonitor

VALIDATION_NAMES = ("val_loss", "validation_loss", "valid_loss")


def watch(monitor: TrainingMonitor, model: Any, optimizer: Any) -> None:
    """Register hooks on a torch.nn.Module and a torch.optim.Optimizer."""
    watch_forward(monitor, model)
    optimizer.register_step_pre_hook(lambda *_: monitor.clock.move_to(Phase.OPTIMIZER))

    def after_step(*_: Any) -> None:
        monitor.clock.move_to(None)
        groups = optimizer.param_groups
        monitor.step(learning_rate=float(groups[0]["lr"]) if groups else None)

    optimizer.register_step_post_hook(after_step)


def watch_forward(monitor: TrainingMonitor, model: Any) -> None:
    """Time forward and backward, which lasts from the end of forward to the next phase; evaluation is ignored."""

    def before_forward(module: Any, _: Any) -> None:
        if module.training:
            monitor.clock.move_to(Phase.FORWARD)

    def after_forward(module: Any, *_: Any) -> None:
        if module.training:
            monitor.clock.move_to(Phase.BACKWARD)

    model.register_forward_pre_hook(before_forward)
    model.register_forward_hook(after_forward)


def watch_communication(monitor: TrainingMonitor, model: Any) -> None:
    """Time how long the end of a backward pass waits for other ranks.

    When the last bucket is sent, DDP queues a callback that waits for all buckets. A hook of one parameter runs before
    that, so the callback that it queues runs first, and a callback queued by that one runs after DDP's. A communication
    hook would work too, but a model has only one, and it made a step of 122 ms 0.6 ms longer.
    """
    engine = optional.require("torch.autograd", package="torch").Variable._execution_engine
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        return
    clock = monitor.clock
    gpu_wait = GpuWait(optional.require("torch.cuda", package="torch")) if trained[-1].is_cuda else None
    clock.gpu_wait = gpu_wait

    def queue_at_end(callback: Callable[[], object]) -> None:
        # An error here must not end the training.
        with suppress(Exception):
            engine.queue_callback(callback)

    def on_gradients_sent() -> None:
        if gpu_wait is not None and gpu_wait.record_sent():
            queue_at_end(gpu_wait.record_reduced)

    def on_last_gradient(_: Any) -> None:
        # False within `no_sync()`, where nothing is sent.
        if not getattr(model, "require_backward_grad_sync", True):
            return
        if gpu_wait is None:
            queue_at_end(clock.record_gradients_sent)
        elif gpu_wait.is_due():
            queue_at_end(on_gradients_sent)

    trained[-1].register_hook(on_last_gradient)


def _move_to(clock: StepClock, phase: Phase | None) -> Callable[..., None]:
    """A method of a callback that only moves the clock."""

    def method(*_: Any, **__: Any) -> None:
        clock.move_to(phase)

    return method


def lightning_callback(monitor: TrainingMonitor) -> Any:
    """The callback for Lightning. Deliberately one function: its methods are Lightning's, and each is short."""
    callbacks = optional.require("lightning.pytorch.callbacks", "pytorch_lightning.callbacks", package="lightning")
    clock = monitor.clock

    class WatchkeeperCallback(callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_fit_start(self, trainer: Any, *_: Any) -> None:
            set_rank(monitor, trainer.global_rank, trainer.world_size)
            save = trainer.save_checkpoint

            def save_checkpoint(path: Any, *arguments: Any, **options: Any) -> None:
                with monitor.checkpoint(path):
                    save(path, *arguments, **options)

            trainer.save_checkpoint = save_checkpoint

        on_train_start = _move_to(clock, Phase.INPUT)
        on_train_batch_start = _move_to(clock, Phase.FORWARD)
        on_after_backward = _move_to(clock, None)
        on_before_optimizer_step = _move_to(clock, Phase.OPTIMIZER)
        on_validation_start = _move_to(clock, Phase.VALIDATION)
        on_train_end = _move_to(clock, None)

        def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:  # noqa: ARG002
            # Lightning has already divided the loss by the number of accumulated batches.
            monitor.report(loss=loss.detach() * trainer.accumulate_grad_batches)
            clock.move_to(Phase.BACKWARD)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002
            clock.move_to(None)
            monitor.add_samples(samples=count_samples(batch))
            monitor.report(epoch=float(trainer.current_epoch))
            if trainer.global_step != monitor.progress.step:
                optimizers = trainer.optimizers
                learning_rate = float(optimizers[0].param_groups[0]["lr"]) if optimizers else None
                monitor.step(learning_rate=learning_rate, number=trainer.global_step)
            clock.move_to(Phase.INPUT)

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            clock.move_to(Phase.INPUT)
            metrics = trainer.callback_metrics
            monitor.report(validation_loss=next((metrics[name] for name in VALIDATION_NAMES if name in metrics), None))

    return WatchkeeperCallback()


def hugging_face_callback(monitor: TrainingMonitor) -> Any:
    """The callback for the Trainer, which has no event for a failed checkpoint. Deliberately one function."""
    transformers = optional.require("transformers", package="transformers")
    clock = monitor.clock

    class WatchkeeperCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **options: Any) -> None:  # noqa: ARG002
            set_rank(monitor, args.process_index, args.world_size)
            if options.get("model") is not None:
                watch_forward(monitor, options["model"])
            clock.move_to(Phase.INPUT)

        on_pre_optimizer_step = _move_to(clock, Phase.OPTIMIZER)
        on_train_end = _move_to(clock, None)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.move_to(None)
            samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
            monitor.step(samples=samples, number=state.global_step)
            if state.epoch is not None:
                monitor.report(epoch=float(state.epoch))
            if control.should_save:
                monitor.checkpoints.record_start()
            clock.move_to(_next_phase(control))

        def on_log(self, args: Any, state: Any, control: Any, **options: Any) -> None:  # noqa: ARG002
            logs = options.get("logs") or {}
            monitor.report(
                loss=logs.get("loss"),
                grad_norm=logs.get("grad_norm"),
                learning_rate=logs.get("learning_rate"),
                validation_loss=logs.get("eval_loss"),
                number=state.global_step,
            )

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            clock.move_to(Phase.CHECKPOINT if control.should_save else Phase.INPUT)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            clock.move_to(Phase.INPUT)
            monitor.checkpoints.record_success(path=Path(args.output_dir) / f"checkpoint-{state.global_step}")

    return WatchkeeperCallback()


def _next_phase(control: Any) -> Phase:
    if control.should_evaluate:
        return Phase.VALIDATION
    return Phase.CHECKPOINT if control.should_save else Phase.INPUT


def set_rank(monitor: TrainingMonitor, rank: int, world_size: int) -> None:
    """Use the framework's rank and world size: it may have started the ranks itself."""
    monitor.place = replace(monitor.place, rank=rank, world_size=world_size)


def count_samples(batch: Any) -> int:
    """The samples of a batch: a tensor, or tensors in a list, tuple or dict; 0 if they cannot be counted."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((size for size in map(count_samples, batch) if size), 0)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0
