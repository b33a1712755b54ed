"""Workloads with known bottlenecks; half of them were used to choose the limits of the classifier."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.gpu.profile_record import (
    Step,
    autocast_training,
    capture_graph,
    copies,
    kernel,
    linear_model,
    matmul,
    repeat,
    torch_module,
    training,
    training_on,
    transformer,
    workload,
)

FMA = r"""
extern "C" __global__ void work(double* out, int rounds) {
  T a = threadIdx.x, b = 1.0001f, c = 0.5f, d = a + 1, e = a + 2, f = a + 3;
  for (int i = 0; i < rounds; i++) { a = a * b + c; d = d * b + c; e = e * b + c; f = f * b + c; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = (double)(a + d + e + f);
}"""
HASH = r"""
extern "C" __global__ void work(double* out, int rounds) {
  unsigned h = threadIdx.x + blockIdx.x * 7u, g = h * 3u;
  for (int i = 0; i < rounds; i++) { h ^= h << 13; h ^= h >> 17; h += g * 2654435761u; g = (g << 5) - g + h; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = h + g;
}"""
SINE = r"""
extern "C" __global__ void work(double* out, int rounds) {
  float a = threadIdx.x * 0.01f;
  for (int i = 0; i < rounds; i++) { a = __sinf(a) + __expf(-a); }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a;
}"""


@workload("compute_bound")
def matmul_fp16_4096() -> Step:
    return matmul("float16", 4096, 50)


@workload("compute_bound")
def matmul_tf32_8192() -> Step:
    torch_module().backends.cuda.matmul.allow_tf32 = True
    return matmul("float32", 8192, 5)


@workload("compute_bound")
def matmul_bf16_2048() -> Step:
    return matmul("bfloat16", 2048, 300)


@workload("compute_bound")
def matmul_fp8() -> Step:
    torch = torch_module()
    a = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device="cuda")
    return repeat(lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16), 10)


@workload("compute_bound")
def matmul_int8() -> Step:
    torch = torch_module()
    a = torch.randint(-127, 127, (8192, 8192), device="cuda", dtype=torch.int8)
    b = torch.randint(-127, 127, (8192, 8192), device="cuda", dtype=torch.int8).t()
    return repeat(lambda: torch._int_mm(a, b), 10)


@workload("compute_bound")
def attention_long() -> Step:
    torch = torch_module()
    q, k, v = (torch.randn(4, 32, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return repeat(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), 3)


@workload("compute_bound")
def conv_bf16_3x3() -> Step:
    torch = torch_module()
    layer = torch.nn.Conv2d(512, 512, 3, padding=1).cuda().bfloat16().to(memory_format=torch.channels_last)
    x = torch.randn(64, 512, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    def run() -> None:
        with torch.no_grad():
            layer(x)

    return repeat(run, 10)


@workload("compute_bound")
def mlp_training_wide() -> Step:
    return training(linear_model(8192, 4), rows=16384, width=8192)


@workload("compute_bound_no_tensor")
def matmul_fp32_2048() -> Step:
    torch_module().backends.cuda.matmul.allow_tf32 = False
    return matmul("float32", 2048, 50)


@workload("compute_bound_no_tensor")
def fma_fp32() -> Step:
    return kernel(FMA.replace("T a", "float a"), "work", 132 * 16, 256, 20000)


@workload("compute_bound_no_tensor")
def fma_fp64() -> Step:
    return kernel(FMA.replace("T a", "double a"), "work", 132 * 16, 256, 10000)


@workload("compute_bound_no_tensor")
def hash_int32() -> Step:
    return kernel(HASH, "work", 132 * 16, 256, 20000)


@workload("compute_bound_no_tensor")
def transcendental() -> Step:
    return kernel(SINE, "work", 132 * 16, 256, 20000)


@workload("memory_bound")
def reduce_sum() -> Step:
    torch = torch_module()
    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    return repeat(lambda: x.sum(dtype=torch.float32), 20)


@workload("memory_bound")
def elementwise_chain() -> Step:
    torch = torch_module()
    x = torch.randn(2**28, device="cuda", dtype=torch.bfloat16)
    return repeat(lambda: torch.relu(x * 1.01 + 0.1).tanh(), 10)


@workload("memory_bound")
def transpose_copy() -> Step:
    x = torch_module().randn(16384, 16384, device="cuda")
    return repeat(lambda: x.t().contiguous(), 20)


@workload("memory_bound")
def layer_norm() -> Step:
    torch = torch_module()
    layer, x = torch.nn.LayerNorm(4096).cuda().bfloat16(), torch.randn(65536, 4096, device="cuda").bfloat16()

    def run() -> None:
        with torch.no_grad():
            layer(x)

    return repeat(run, 20)


@workload("memory_bound")
def gather_rows() -> Step:
    torch = torch_module()
    table = torch.randn(2**24, 64, device="cuda", dtype=torch.bfloat16)
    index = torch.randint(0, 2**24, (2**23,), device="cuda")
    return repeat(lambda: table.index_select(0, index), 20)


@workload("memory_bound")
def scatter_add() -> Step:
    torch = torch_module()
    table = torch.zeros(2**24, 64, device="cuda")
    index, rows = torch.randint(0, 2**24, (2**22,), device="cuda"), torch.randn(2**22, 64, device="cuda")
    return repeat(lambda: table.index_add_(0, index, rows), 5)


@workload("memory_bound")
def gather_random_words() -> Step:
    torch = torch_module()
    table, index = torch.randn(2**30, device="cuda"), torch.randint(0, 2**30, (2**27,), device="cuda")
    return repeat(lambda: table[index], 3)


@workload("memory_bound")
def decode_batch1_graph() -> Step:
    """Matrix times vector over 8 GB of weights, as a language model does for each token."""
    torch = torch_module()
    weights = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(64)]
    x = torch.randn(1, 8192, device="cuda", dtype=torch.bfloat16)

    def token() -> None:
        y = x
        for weight in weights:
            y = torch.nn.functional.linear(y, weight)

    return repeat(capture_graph(token).replay, 10)


@workload("memory_bound")
def adam_fused() -> Step:
    torch = torch_module()
    values = [torch.nn.Parameter(torch.randn(2**26, device="cuda")) for _ in range(8)]
    for value in values:
        value.grad = torch.randn_like(value)
    step = torch.optim.Adam(values, lr=1e-4, fused=True).step
    return repeat(step, 5)


@workload("pcie_bound")
def h2d_pinned_16m() -> Step:
    return copies(2**24, is_pinned=True, to_gpu=True)


@workload("pcie_bound")
def d2h_pageable() -> Step:
    return copies(2**28, is_pinned=False, to_gpu=False)


@workload("pcie_bound")
def h2d_pageable_64m() -> Step:
    return copies(2**26, is_pinned=False, to_gpu=True)


@workload("pcie_bound")
def both_ways_pinned() -> Step:
    torch = torch_module()
    first_stream, second_stream = torch.cuda.Stream(), torch.cuda.Stream()
    host = [torch.empty(2**27, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    gpu = [torch.empty(2**27, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def step() -> None:
        for _ in range(5):
            with torch.cuda.stream(first_stream):
                gpu[0].copy_(host[0], non_blocking=True)
            with torch.cuda.stream(second_stream):
                host[1].copy_(gpu[1], non_blocking=True)
        torch.cuda.synchronize()

    return step


@workload("pcie_bound")
def offloaded_weights() -> Step:
    """Weights are copied from the host before each multiplication, as with CPU offload."""
    torch = torch_module()
    host = torch.randn(8192, 8192).bfloat16().pin_memory()
    gpu, x = torch.empty_like(host, device="cuda"), torch.randn(512, 8192, device="cuda").bfloat16()

    def run() -> None:
        gpu.copy_(host, non_blocking=True)
        torch.matmul(x, gpu)

    return repeat(run, 10)


@workload("launch_bound")
def tiny_adds() -> Step:
    x = torch_module().ones(1024, device="cuda")
    return repeat(lambda: x.add_(1), 20000)


@workload("launch_bound")
def mlp_eager_batch1() -> Step:
    torch = torch_module()
    model, x = linear_model(256, 20).eval(), torch.randn(1, 256, device="cuda").bfloat16()

    def run() -> None:
        with torch.no_grad():
            model(x)

    return repeat(run, 200)


@workload("launch_bound")
def transformer_eager_batch1() -> Step:
    torch = torch_module()
    model, x = transformer(256, 8).eval(), torch.randn(1, 32, 256, device="cuda").bfloat16()

    def run() -> None:
        with torch.no_grad():
            model(x)

    return repeat(run, 50)


@workload("launch_bound")
def small_training() -> Step:
    return training(linear_model(128, 10), rows=32, width=128, rounds=50)


@workload("launch_bound")
def adam_many_small() -> Step:
    torch = torch_module()
    values = [torch.nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(300)]
    for value in values:
        value.grad = torch.randn_like(value)
    return repeat(torch.optim.Adam(values, lr=1e-4, foreach=False).step, 5)


@workload("launch_bound")
def recurrent_loop() -> Step:
    torch = torch_module()
    cell, x = torch.nn.LSTMCell(256, 256).cuda(), torch.randn(16, 256, device="cuda")

    def run() -> None:
        with torch.no_grad():
            state = None
            for _ in range(100):
                state = cell(x, state)

    return repeat(run, 10)


def _starved(on_ms: float, off_ms: float) -> Step:
    """Wide kernels for `on_ms`, then nothing for `off_ms`."""
    torch = torch_module()
    a = torch.randn(4096, 4096, device="cuda").bfloat16()
    # One product of this size takes about 0.19 ms on an H200.
    count = max(1, round(on_ms / 0.19))

    def step() -> None:
        for _ in range(count):
            torch.matmul(a, a)
        torch.cuda.synchronize()
        time.sleep(off_ms / 1000)

    return step


@workload("data_starved")
def starved_5_of_25ms() -> Step:
    return _starved(5, 20)


@workload("data_starved")
def starved_10_of_30ms() -> Step:
    return _starved(10, 20)


@workload("data_starved")
def starved_10_of_110ms() -> Step:
    return _starved(10, 100)


@workload("data_starved")
def starved_20_of_320ms() -> Step:
    return _starved(20, 300)


@workload("data_starved")
def loader_on_cpu() -> Step:
    """Decoding on one core, a pageable copy, and a training step."""
    torch = torch_module()
    import numpy

    train = training_on(linear_model(4096, 4), rows=4096, width=4096)

    def step() -> None:
        batch = numpy.random.default_rng().standard_normal((4096, 4096), dtype=numpy.float32)
        train(torch.from_numpy(batch).cuda().bfloat16())
        torch.cuda.synchronize()

    return step


@workload("data_starved")
def loader_slow_small_model() -> Step:
    torch = torch_module()
    train = training_on(linear_model(1024, 6), rows=8192, width=1024)
    host = torch.randn(8192, 1024)

    def step() -> None:
        time.sleep(0.15)
        train(host.cuda().bfloat16())
        torch.cuda.synchronize()

    return step


@workload("stalls_input_or_io")
def stalls_1s_of_2s() -> Step:
    return _starved(1000, 1000)


@workload("stalls_input_or_io")
def stalls_600_of_1300ms() -> Step:
    return _starved(600, 700)


@workload("stalls_input_or_io")
def checkpoint_to_disk() -> Step:
    """Training that stops about every second to write a checkpoint."""
    torch = torch_module()
    train = training_on(linear_model(8192, 4), rows=4096, width=8192)
    x, folder = torch.randn(4096, 8192, device="cuda").bfloat16(), tempfile.mkdtemp()
    state = torch.zeros(2**28, dtype=torch.uint8).numpy()

    def step() -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            train(x)
            torch.cuda.synchronize()
        with Path(folder, "checkpoint").open("wb") as file:
            for _ in range(3):
                file.write(state.data)
            file.flush()
        time.sleep(0.4)

    return step


@workload("underutilized")
def inference_few_requests() -> Step:
    torch = torch_module()
    model, x = linear_model(1024, 6).eval(), torch.randn(1, 1024, device="cuda").bfloat16()

    def step() -> None:
        with torch.no_grad():
            model(x)
        torch.cuda.synchronize()
        time.sleep(0.02)

    return step


@workload("underutilized")
def graph_few_requests() -> Step:
    torch = torch_module()
    model, x = linear_model(1024, 24).eval(), torch.randn(1, 1024, device="cuda").bfloat16()

    def run() -> None:
        with torch.no_grad():
            model(x)

    replay = capture_graph(run).replay

    def step() -> None:
        replay()
        torch.cuda.synchronize()
        time.sleep(0.003)

    return step


@workload("underutilized")
def few_blocks() -> Step:
    return kernel(FMA.replace("T a", "float a"), "work", 4, 256, 200000)


@workload("underutilized")
def sixteen_blocks() -> Step:
    return kernel(FMA.replace("T a", "float a"), "work", 16, 128, 200000)


@workload("mixed")
def transformer_training() -> Step:
    torch = torch_module()
    model = transformer(1024, 8)
    x = torch.randn(8, 1024, 1024, device="cuda").bfloat16()
    train = training_on(model)
    return repeat(lambda: train(x), 2)


@workload("mixed")
def resnet_training() -> Step:
    torch = torch_module()
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)

    return autocast_training(model, optimizer, x)


@workload("mixed")
def matmul_and_elementwise() -> Step:
    torch = torch_module()
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    y = torch.randn(2**29, device="cuda").bfloat16()

    def run() -> None:
        torch.matmul(a, a)
        y.mul_(1.0001)
        y.add_(0.1)

    return repeat(run, 10)


@workload("idle")
def idle_after_work() -> Step:
    x = torch_module().randn(2**28, device="cuda")
    x.add_(1)

    def step() -> None:
        time.sleep(0.2)

    return step
