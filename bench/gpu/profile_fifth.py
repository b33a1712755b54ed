"""A fifth set of workloads with known bottlenecks, with other sizes, duty cycles and models than the sets before.

It was written after the results of the fourth set, when the limits had been moved to the middle of the gaps between
classes, and before it was recorded. Some workloads are near the limits on purpose: tiny kernels that fill the GPU,
loaders with little work, frequent requests. `profile_bench --set fifth` records and classifies it. In the first run 42
of 43 labels were correct, 97.7 % of the samples: a single product every 5 ms was classified as starved, for which a
limit was added.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.gpu.profile_record import (
    Step,
    capture_graph,
    classify_one_image,
    copies,
    hold_memory,
    kernel,
    linear_model,
    matmul,
    random_bf16,
    recurrence,
    repeat,
    then_sleep,
    torch_module,
    training_on,
    transformer,
    use_cpu,
    without_gradients,
    work_for,
    workload,
)

SERIES = """
template <typename T> T series(T x) {
  T sum = 1, part = 1;
  for (int i = 1; i < 300; i++) { part = part * x * T(0.01) + T(0.001); sum = sum + part; }
  return sum;
}"""
SPIN = r"""
extern "C" __global__ void work(double* out, int rounds) {
  float a = threadIdx.x;
  for (int i = 0; i < rounds; i++) { a = a * 1.0001f + 0.5f; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a;
}"""


@workload("compute_bound")
def fifth_bf16_12288() -> Step:
    return matmul("bfloat16", 12288, 2)


@workload("compute_bound")
def fifth_fp16_many_products() -> Step:
    torch = torch_module()
    a = torch.randn(256, 1536, 1536, device="cuda").half()
    return repeat(lambda: torch.bmm(a, a), 3)


@workload("compute_bound")
def fifth_int8_16384() -> Step:
    torch = torch_module()
    a, b = (torch.randint(-99, 99, (16384, 16384), device="cuda", dtype=torch.int8) for _ in range(2))
    return repeat(lambda: torch._int_mm(a, b.t()), 2)


@workload("compute_bound")
def fifth_attention_of_16384() -> Step:
    torch = torch_module()
    q, k, v = (random_bf16(2, 16, 16384, 128) for _ in range(3))
    return repeat(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v), 2)


@workload("compute_bound")
def fifth_prefill_wide() -> Step:
    torch = torch_module()
    weights, tokens = [(random_bf16(28672, 8192), random_bf16(8192, 28672)) for _ in range(4)], random_bf16(8192, 8192)
    linear = torch.nn.functional.linear

    def run() -> None:
        x = tokens
        for up, down in weights:
            x = x + linear(torch.relu(linear(x, up)), down)

    return repeat(without_gradients(run), 2)


@workload("compute_bound_no_tensor")
def fifth_fp32_6144() -> Step:
    torch_module().backends.cuda.matmul.allow_tf32 = False
    return matmul("float32", 6144, 4)


@workload("compute_bound_no_tensor")
def fifth_fp32_training() -> Step:
    torch = torch_module()
    torch.backends.cuda.matmul.allow_tf32 = False
    layers = [part for _ in range(4) for part in (torch.nn.Linear(4096, 4096), torch.nn.ReLU())]
    train = training_on(torch.nn.Sequential(*layers).cuda())
    x = torch.randn(4096, 4096, device="cuda")
    return repeat(lambda: train(x), 2)


@workload("compute_bound_no_tensor")
def fifth_series_fp32() -> Step:
    torch = torch_module()
    chain, x = torch.cuda.jiterator._create_jit_fn(SERIES), torch.rand(2**27, device="cuda")
    return repeat(lambda: chain(x), 3)


@workload("memory_bound")
def fifth_add_fp64() -> Step:
    torch = torch_module()
    a, b = (torch.randn(2**28, device="cuda", dtype=torch.float64) for _ in range(2))
    return repeat(lambda: torch.add(a, b, out=b), 10)


@workload("memory_bound")
def fifth_rms_norm() -> Step:
    torch = torch_module()
    x = random_bf16(32768, 5120)
    return repeat(without_gradients(lambda: torch.nn.functional.rms_norm(x, (5120,))), 20)


@workload("memory_bound")
def fifth_adam_fused() -> Step:
    torch = torch_module()
    values = [torch.nn.Parameter(random_bf16(2**27)) for _ in range(8)]
    for value in values:
        value.grad = torch.randn_like(value)
    return repeat(torch.optim.AdamW(values, lr=1e-4, fused=True).step, 5)


@workload("memory_bound")
def fifth_kv_cache_of_128() -> Step:
    torch = torch_module()
    q, k, v = random_bf16(128, 16, 1, 128), random_bf16(128, 16, 4096, 128), random_bf16(128, 16, 4096, 128)
    return repeat(without_gradients(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)), 20)


@workload("memory_bound")
def fifth_decode_of_4() -> Step:
    torch = torch_module()
    weights, x = [random_bf16(28672, 8192) for _ in range(16)], random_bf16(4, 8192)
    return repeat(without_gradients(lambda: [torch.nn.functional.linear(x, weight) for weight in weights]), 5)


@workload("memory_bound")
def fifth_group_norm() -> Step:
    torch = torch_module()
    layer, x = torch.nn.GroupNorm(32, 256).cuda(), torch.randn(64, 256, 96, 96, device="cuda")
    return repeat(without_gradients(lambda: layer(x)), 20)


@workload("memory_bound")
def fifth_masked_where() -> Step:
    torch = torch_module()
    x = torch.randn(2**29, device="cuda")
    mask = x > 0
    return repeat(lambda: torch.where(mask, x, 0.0), 10)


@workload("memory_bound")
def fifth_sort_floats() -> Step:
    x = torch_module().rand(2**26, device="cuda")
    return repeat(x.sort, 5)


@workload("pcie_bound")
def fifth_to_gpu_pinned_64m() -> Step:
    return copies(2**26, is_pinned=True, to_gpu=True)


@workload("pcie_bound")
def fifth_from_gpu_pinned_8m() -> Step:
    return copies(2**23, is_pinned=True, to_gpu=False)


@workload("pcie_bound")
def fifth_to_gpu_pageable_256m() -> Step:
    return copies(2**28, is_pinned=False, to_gpu=True)


@workload("pcie_bound")
def fifth_there_and_back() -> Step:
    torch = torch_module()
    host, gpu = torch.ones(2**25, pin_memory=True), torch.ones(2**25, device="cuda")

    def run() -> None:
        gpu.copy_(host, non_blocking=True)
        host.copy_(gpu, non_blocking=True)

    return repeat(run, 10)


@workload("launch_bound")
def fifth_million_words_each() -> Step:
    torch = torch_module()
    x = torch.rand(2**20, device="cuda")
    return repeat(lambda: torch.sigmoid(x * 1.01 + 0.1), 1000)


@workload("launch_bound")
def fifth_lstm_cell_of_128() -> Step:
    torch = torch_module()
    return recurrence(torch.nn.LSTMCell(128, 128).cuda(), torch.randn(64, 128, device="cuda"))


@workload("launch_bound")
def fifth_products_of_128() -> Step:
    a = random_bf16(128, 128)
    return repeat(lambda: a @ a, 5000)


@workload("launch_bound")
def fifth_encoder_of_16_tokens() -> Step:
    model, x = transformer(384, 10).eval(), random_bf16(1, 16, 384)
    return repeat(without_gradients(lambda: model(x)), 30)


@workload("launch_bound")
def fifth_recommender_training() -> Step:
    torch = torch_module()
    table = torch.nn.Embedding(10000, 32)
    layers = (table, torch.nn.Flatten(), torch.nn.Linear(32 * 8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    train = training_on(torch.nn.Sequential(*layers).cuda())
    index = torch.randint(0, 10000, (128, 8), device="cuda")
    return repeat(lambda: train(index), 50)


@workload("data_starved")
def fifth_starved_8_of_60ms() -> Step:
    a = random_bf16(6144, 6144)
    return then_sleep(lambda: work_for(lambda: a @ a, 0.008), 0.052)


@workload("data_starved")
def fifth_starved_60_of_200ms() -> Step:
    train, x = training_on(transformer(1024, 4)), random_bf16(8, 1024, 1024)
    return then_sleep(lambda: work_for(lambda: train(x), 0.06), 0.14)


@workload("data_starved")
def fifth_thinks_then_copies() -> Step:
    """A loader that takes 60 ms for a batch of 64 MiB, with little work on it."""
    torch = torch_module()
    host = torch.randn(2**24)

    def step() -> None:
        use_cpu(0.06)
        (host.cuda() * 2).sum().item()

    return step


@workload("data_starved")
def fifth_small_model_large_batches() -> Step:
    torch = torch_module()
    train, host = training_on(linear_model(512, 3)), torch.randn(16384, 512)

    def step() -> None:
        use_cpu(0.05)
        train(host.cuda().bfloat16())
        torch.cuda.synchronize()

    return step


@workload("data_starved")
def fifth_images_decoded() -> Step:
    torch = torch_module()
    import torchvision

    model = torchvision.models.vit_b_16().cuda().bfloat16()
    train, host = training_on(model), torch.randn(96, 3, 224, 224)

    def step() -> None:
        use_cpu(0.4)
        train(host.cuda().bfloat16())
        torch.cuda.synchronize()

    return step


@workload("stalls_input_or_io")
def fifth_stops_600_of_1400ms() -> Step:
    train, x = training_on(linear_model(8192, 2)), random_bf16(8192, 8192)
    return then_sleep(lambda: work_for(lambda: train(x), 0.8), 0.6)


@workload("stalls_input_or_io")
def fifth_memory_work_with_stops() -> Step:
    x = torch_module().randn(2**29, device="cuda")
    return then_sleep(lambda: work_for(lambda: x.mul_(1.0001), 1.5), 1.0)


@workload("stalls_input_or_io")
def fifth_saves_arrays() -> Step:
    import numpy

    train, x = training_on(linear_model(6144, 4)), random_bf16(8192, 6144)
    state, path = numpy.ones(2**28, dtype=numpy.float32), Path(tempfile.mkdtemp(), "state.npy")

    def step() -> None:
        work_for(lambda: train(x), 1.2)
        numpy.save(path, state)
        time.sleep(0.3)

    return step


@workload("stalls_input_or_io")
def fifth_validates_on_the_cpu() -> Step:
    a = random_bf16(8192, 8192)

    def step() -> None:
        work_for(lambda: a @ a, 1.0)
        use_cpu(0.7)

    return step


@workload("underutilized")
def fifth_resnet18_each_20ms() -> Step:
    return then_sleep(classify_one_image("resnet18"), 0.02)


@workload("underutilized")
def fifth_encoder_request_each_20ms() -> Step:
    model, x = transformer(768, 12).eval(), random_bf16(1, 32, 768)
    return then_sleep(without_gradients(lambda: model(x)), 0.02)


@workload("underutilized")
def fifth_eight_blocks() -> Step:
    return kernel(SPIN, "work", 8, 1024, 400000)


@workload("underutilized")
def fifth_product_each_5ms() -> Step:
    a = random_bf16(1024, 1024)
    return then_sleep(lambda: a @ a, 0.005)


@workload("underutilized")
def fifth_graph_each_10ms() -> Step:
    model, x = linear_model(1536, 12).eval(), random_bf16(1, 1536)
    return then_sleep(capture_graph(without_gradients(lambda: model(x))).replay, 0.01)


@workload("mixed")
def fifth_language_model_training() -> Step:
    train, x = training_on(transformer(1536, 6)), random_bf16(4, 2048, 1536)
    return repeat(lambda: train(x), 2)


@workload("mixed")
def fifth_products_and_copies() -> Step:
    """10 ms of each in turn."""
    torch = torch_module()
    a, source = random_bf16(6144, 6144), torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)

    def step() -> None:
        for _ in range(12):
            torch.matmul(a, a)
        for _ in range(20):
            target.copy_(source)
        torch.cuda.synchronize()

    return step


@workload("idle")
def fifth_20_gib_held() -> Step:
    return hold_memory(20 * 2**30)


@workload("idle")
def fifth_thinks_alone() -> Step:
    torch_module().zeros(1, device="cuda")
    return lambda: use_cpu(0.2)
