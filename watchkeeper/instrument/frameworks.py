"""The same monitor as one line in a PyTorch loop, in Lightning, and in Hugging Face's Trainer.

`TrainingMonitor` calls it. A framework says when things begin, so each of its calls moves the clock to the next
phase; nothing is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.instrument import optional
from watchkeeper.instrument.gpu_wait import GpuWait
from watchkeeper.instrument.step_clock import Phase

if TYPE_CHECKING:
    from watchkeeper.instrument.training import TrainingMonitor

VALIDATION_NAMES = ("val_loss", "validation_loss", "valid_loss")


def watch(monitor: TrainingMonitor, model: Any, optimizer: Any) -> None:
    """Hooks of torch.nn.Module and torch.optim.Optimizer."""
    watch_forward(monitor, model)
    optimizer.register_step_pre_hook(lambda *_: monitor.clock.move_to(Phase.OPTIMIZER))

    def stepped(*_: Any) -> None:
        monitor.clock.move_to(None)
        groups = optimizer.param_groups
        monitor.step(learning_rate=float(groups[0]["lr"]) if groups else None)

    optimizer.register_step_post_hook(stepped)


def watch_forward(monitor: TrainingMonitor, model: Any) -> None:
    """Between the end of a forward pass and whatever comes next lies the backward pass; evaluation is left alone."""

    def before(module: Any, _: Any) -> None:
        if module.training:
            monitor.clock.move_to(Phase.FORWARD)

    def after(module: Any, *_: Any) -> None:
        if module.training:
            monitor.clock.move_to(Phase.BACKWARD)

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)


def watch_communication(monitor: TrainingMonitor, model: Any) -> None:
    """How long the end of a backward pass waits for other ranks.

    DDP queues its own end of the pass, in which it waits for all buckets, when the last of them is sent. A hook of one
    parameter runs before that, so what it queues comes first, and what that one queues comes behind DDP's. A
    communication hook would say it too, but a model has only one, and it made a step of 122 ms 0.6 ms longer.
    """
    engine = optional.need("torch.autograd", package="torch").Variable._execution_engine
    last = next((one for one in reversed(list(model.parameters())) if one.requires_grad), None)
    if last is None:
        return
    clock = monitor.clock
    wait = clock.gpu_wait = GpuWait(optional.need("torch.cuda", package="torch")) if last.is_cuda else None

    def at_the_end(then: Callable[[], object]) -> None:
        # Whatever goes wrong in here must not end a training.
        with suppress(Exception):
            engine.queue_callback(then)

    def sent() -> None:
        if wait is not None and wait.sent():
            at_the_end(wait.reduced)

    def computed(_: Any) -> None:
        # False within `no_sync()`, where nothing is sent.
        if not getattr(model, "require_backward_grad_sync", True):
            return
        if wait is None:
            at_the_end(clock.sent_last_gradients)
        elif wait.is_due():
            at_the_end(sent)

    last.register_hook(computed)


def lightning_callback(monitor: TrainingMonitor) -> Any:
    """Deliberately one function: its methods are Lightning's, and each is a line or two."""
    callbacks = optional.need("lightning.pytorch.callbacks", "pytorch_lightning.callbacks", package="lightning")
    clock = monitor.clock

    class WatchkeeperCallback(callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_fit_start(self, trainer: Any, *_: Any) -> None:
            take_place(monitor, trainer.global_rank, trainer.world_size)
            save = trainer.save_checkpoint

            def saved(path: Any, *rest: Any, **named: Any) -> None:
                with monitor.checkpoint(path):
                    save(path, *rest, **named)

            trainer.save_checkpoint = saved

        def on_train_start(self, *_: Any) -> None:
            clock.move_to(Phase.INPUT)

        def on_train_batch_start(self, *_: Any) -> None:
            clock.move_to(Phase.FORWARD)

        def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:  # noqa: ARG002
            # Lightning has divided it for accumulation already.
            monitor.tell(loss=loss.detach() * trainer.accumulate_grad_batches)
            clock.move_to(Phase.BACKWARD)

        def on_after_backward(self, *_: Any) -> None:
            clock.move_to(None)

        def on_before_optimizer_step(self, *_: Any) -> None:
            clock.move_to(Phase.OPTIMIZER)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002
            clock.move_to(None)
            monitor.saw(samples=size_of(batch))
            monitor.tell(epoch=float(trainer.current_epoch))
            if trainer.global_step != monitor.progress.step:
                optimizers = trainer.optimizers
                rate = float(optimizers[0].param_groups[0]["lr"]) if optimizers else None
                monitor.step(learning_rate=rate, number=trainer.global_step)
            clock.move_to(Phase.INPUT)

        def on_validation_start(self, *_: Any) -> None:
            clock.move_to(Phase.VALIDATION)

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            clock.move_to(Phase.INPUT)
            told = trainer.callback_metrics
            monitor.tell(validation_loss=next((told[name] for name in VALIDATION_NAMES if name in told), None))

        def on_train_end(self, *_: Any) -> None:
            clock.move_to(None)

    return WatchkeeperCallback()


def hugging_face_callback(monitor: TrainingMonitor) -> Any:
    """Deliberately one function: its methods are the Trainer's. It has no call for a checkpoint that failed."""
    transformers = optional.need("transformers", package="transformers")
    clock = monitor.clock

    class WatchkeeperCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
            take_place(monitor, args.process_index, args.world_size)
            if named.get("model") is not None:
                watch_forward(monitor, named["model"])
            clock.move_to(Phase.INPUT)

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            clock.move_to(Phase.OPTIMIZER)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.move_to(None)
            samples = args.per_device_train_batch_size * args.gradient_accumulation_steps
            monitor.step(samples=samples, number=state.global_step)
            if state.epoch is not None:
                monitor.tell(epoch=float(state.epoch))
            if control.should_save:
                monitor.checkpoints.begin()
            clock.move_to(_next_phase(control))

        def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
            told = named.get("logs") or {}
            monitor.tell(
                loss=told.get("loss"),
                grad_norm=told.get("grad_norm"),
                learning_rate=told.get("learning_rate"),
                validation_loss=told.get("eval_loss"),
                number=state.global_step,
            )

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            clock.move_to(Phase.CHECKPOINT if control.should_save else Phase.INPUT)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            clock.move_to(Phase.INPUT)
            monitor.checkpoints.succeed(path=Path(args.output_dir) / f"checkpoint-{state.global_step}")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            clock.move_to(None)

    return WatchkeeperCallback()


def _next_phase(control: Any) -> Phase:
    if control.should_evaluate:
        return Phase.VALIDATION
    return Phase.CHECKPOINT if control.should_save else Phase.INPUT


def take_place(monitor: TrainingMonitor, rank: int, world_size: int) -> None:
    """What the framework knows better than the environment: it may have started the ranks itself."""
    monitor.place = replace(monitor.place, rank=rank, world_size=world_size)


def size_of(batch: Any) -> int:
    """Samples of a batch as loaders make them: a tensor, or tensors in a list, tuple or dict; 0 where none is found."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((size for size in map(size_of, batch) if size), 0)
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0
