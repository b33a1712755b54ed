"""A third set of workloads with known bottlenecks, whose classes were written down before it was recorded.

They need only torch: clear examples of each class, as a user would choose them to try the classifier.
`profile_bench --set third` records and classifies them. In the first run 21 of 23 labels were correct, 91.3 % of the
samples: a request of 6 µs every 25 ms was classified as idle, and copies into new pages as underutilized. Both limits
were corrected after that.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.profile_record import (
    Step,
    convolution,
    copies,
    hold_memory,
    linear_model,
    matmul,
    repeat,
    then_sleep,
    torch_module,
    training_on,
    without_gradients,
    work_for,
    workload,
)

CHAIN = """
template <typename T> T chain(T x) {
  for (int i = 0; i < 300; i++) { x = sin(x) * T(1.01) + cos(x); }
  return x;
}"""


@workload("compute_bound")
def third_matmul_bf16_16384() -> Step:
    return matmul("bfloat16", 16384, 2)


@workload("memory_bound")
def third_copy_on_device() -> Step:
    torch = torch_module()
    source = torch.randn(2**30, device="cuda")
    target = torch.empty_like(source)
    return repeat(lambda: target.copy_(source), 20)


@workload("launch_bound")
def third_tiny_chain() -> Step:
    torch = torch_module()
    x = torch.ones(4096, device="cuda")

    def run() -> None:
        y = x * 1.5
        y = y + 0.25
        torch.sin(y)

    return repeat(run, 3000)


@workload("pcie_bound")
def third_to_gpu_pinned_256m() -> Step:
    return copies(2**28, is_pinned=True, to_gpu=True)


@workload("data_starved")
def third_sleeping_loader() -> Step:
    torch = torch_module()
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    return then_sleep(lambda: [a @ a for _ in range(4)], 0.04)


@workload("compute_bound_no_tensor")
def third_matmul_fp32_4096() -> Step:
    torch_module().backends.cuda.matmul.allow_tf32 = False
    return matmul("float32", 4096, 10)


@workload("idle")
def third_context_and_nothing() -> Step:
    return hold_memory(2**20)


@workload("memory_bound")
def third_softmax_fp32() -> Step:
    torch = torch_module()
    x = torch.randn(16384, 16384, device="cuda")
    return repeat(lambda: torch.softmax(x, -1), 20)


@workload("stalls_input_or_io")
def third_stops_of_700ms() -> Step:
    torch = torch_module()
    train = training_on(linear_model(8192, 3), rows=8192, width=8192)
    x = torch.randn(8192, 8192, device="cuda").bfloat16()

    def step() -> None:
        work_for(lambda: train(x), 0.8)
        time.sleep(0.7)

    return step


@workload("compute_bound")
def third_conv_fp16() -> Step:
    return repeat(convolution(256, 128, 64), 10)


@workload("underutilized")
def third_small_request_each_25ms() -> Step:
    torch = torch_module()
    a = torch.randn(512, 512, device="cuda").half()
    return then_sleep(lambda: a @ a, 0.025)


@workload("memory_bound")
def third_layer_norm_and_residual() -> Step:
    torch = torch_module()
    layer, x = torch.nn.LayerNorm(8192).cuda().bfloat16(), torch.randn(32768, 8192, device="cuda").bfloat16()
    return repeat(without_gradients(lambda: x + layer(x)), 20)


@workload("pcie_bound")
def third_from_gpu_pageable() -> Step:
    x = torch_module().ones(2**27, dtype=torch_module().uint8, device="cuda")
    return repeat(x.cpu, 4)


@workload("compute_bound")
def third_matmul_fp8() -> Step:
    torch = torch_module()
    a, b = (torch.randn(16384, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device="cuda")
    return repeat(lambda: torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16), 5)


@workload("compute_bound_no_tensor")
def third_sines_of_sines() -> Step:
    torch = torch_module()
    chain, x = torch.cuda.jiterator._create_jit_fn(CHAIN), torch.randn(2**26, device="cuda")
    return repeat(lambda: chain(x), 2)


@workload("memory_bound")
def third_embedding_gather() -> Step:
    torch = torch_module()
    table = torch.nn.Embedding(2**22, 512, device="cuda", dtype=torch.float16)
    index = torch.randint(0, 2**22, (4096, 256), device="cuda")
    return repeat(without_gradients(lambda: table(index)), 20)


@workload("launch_bound")
def third_small_model_training() -> Step:
    torch = torch_module()
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    train = training_on(torch.nn.TransformerEncoder(layer, 4).cuda())
    x = torch.randn(4, 16, 128, device="cuda")
    return repeat(lambda: train(x), 10)


@workload("mixed")
def third_half_products_half_copies() -> Step:
    torch = torch_module()
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    source = torch.empty(3 * 2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def run() -> None:
        torch.matmul(a, a)
        target.copy_(source)

    return repeat(run, 10)


@workload("data_starved")
def third_dataloader_without_workers() -> Step:
    torch = torch_module()

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 2**20

        def __getitem__(self, row: int) -> Any:
            time.sleep(0.002)
            return torch.full((4096,), float(row % 7))

    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=64))
    train = training_on(linear_model(4096, 4))

    def step() -> None:
        train(next(batches).cuda().bfloat16().repeat(64, 1))
        torch.cuda.synchronize()

    return step


@workload("memory_bound")
def third_reduce_max() -> Step:
    x = torch_module().randn(2**30, device="cuda")
    return repeat(x.max, 20)


@workload("pcie_bound")
def third_to_gpu_pageable_32m() -> Step:
    return copies(2**25, is_pinned=False, to_gpu=True)


@workload("stalls_input_or_io")
def third_checkpoint_with_torch_save() -> Step:
    torch = torch_module()
    train = training_on(linear_model(8192, 4), rows=8192, width=8192)
    x, state = torch.randn(8192, 8192, device="cuda").bfloat16(), torch.zeros(3 * 2**28, dtype=torch.uint8)
    path = Path(tempfile.mkdtemp(), "checkpoint.pt")

    def step() -> None:
        work_for(lambda: train(x), 1.0)
        torch.save(state, path)

    return step


@workload("underutilized")
def third_one_thread_spins() -> Step:
    torch = torch_module()
    return repeat(lambda: torch.cuda._sleep(20_000_000), 5)
