"""A second set of workloads with known bottlenecks, recorded after the limits of the classifier had been chosen.

24 of its 26 labels were correct (softmax and memory work with stops were not), and two rules were corrected after that.
`profile_third` was written to test with new workloads.
"""

from __future__ import annotations

import random
import time

from bench.gpu.profile_record import (
    Step,
    capture_graph,
    copies,
    kernel,
    linear_model,
    matmul,
    repeat,
    then_sleep,
    torch_module,
    training_on,
    transformer,
    use_cpu,
    without_gradients,
    workload,
)

MANDELBROT = r"""
extern "C" __global__ void work(double* out, int rounds) {
  float x = 0, y = 0, a = (threadIdx.x % 32) * 0.01f - 0.2f, b = blockIdx.x * 0.0001f;
  for (int i = 0; i < rounds; i++) {
    float t = x * x - y * y + a; y = 2 * x * y + b; x = t;
    if (x * x + y * y > 4) { x = y = 0; }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}"""


@workload("compute_bound")
def matmul_bf16_tall() -> Step:
    torch = torch_module()
    a, b = torch.randn(32768, 4096, device="cuda").bfloat16(), torch.randn(4096, 4096, device="cuda").bfloat16()
    return repeat(lambda: a @ b, 10)


@workload("compute_bound")
def bmm_fp16() -> Step:
    torch = torch_module()
    a = torch.randn(64, 2048, 2048, device="cuda").half()
    return repeat(lambda: torch.bmm(a, a), 5)


@workload("compute_bound")
def matmul_fp64() -> Step:
    return matmul("float64", 4096, 5)


@workload("compute_bound_no_tensor")
def matmul_fp32_8192() -> Step:
    torch_module().backends.cuda.matmul.allow_tf32 = False
    return matmul("float32", 8192, 2)


@workload("compute_bound_no_tensor")
def mandelbrot() -> Step:
    return kernel(MANDELBROT, "work", 132 * 32, 256, 20000)


@workload("memory_bound")
def softmax_rows() -> Step:
    torch = torch_module()
    x = torch.randn(32768, 8192, device="cuda").bfloat16()
    return repeat(lambda: torch.softmax(x, -1), 20)


@workload("memory_bound")
def cumulative_sum() -> Step:
    x = torch_module().randn(2**28, device="cuda")
    return repeat(lambda: x.cumsum(0), 10)


@workload("memory_bound")
def sort_keys() -> Step:
    torch = torch_module()
    x = torch.randint(0, 2**31 - 1, (2**27,), device="cuda", dtype=torch.int32)
    return repeat(x.sort, 3)


@workload("memory_bound")
def embedding_lookup() -> Step:
    torch = torch_module()
    table = torch.nn.Embedding(2**21, 1024, device="cuda", dtype=torch.bfloat16)
    index = torch.randint(0, 2**21, (2**19,), device="cuda")
    return repeat(without_gradients(lambda: table(index)), 20)


@workload("memory_bound")
def fill_with_zeros() -> Step:
    x = torch_module().empty(2**31, device="cuda", dtype=torch_module().uint8)
    return repeat(x.zero_, 20)


@workload("memory_bound")
def decode_batch8_eager() -> Step:
    torch = torch_module()
    weights = [torch.randn(16384, 8192, device="cuda").bfloat16() for _ in range(24)]
    x = torch.randn(8, 8192, device="cuda").bfloat16()
    return repeat(without_gradients(lambda: [torch.nn.functional.linear(x, weight) for weight in weights]), 5)


@workload("pcie_bound")
def d2h_pinned_4m() -> Step:
    return copies(2**22, is_pinned=True, to_gpu=False)


@workload("pcie_bound")
def h2d_pageable_8m() -> Step:
    return copies(2**23, is_pinned=False, to_gpu=True)


@workload("launch_bound")
def small_matmuls() -> Step:
    torch = torch_module()
    a = torch.randn(64, 64, device="cuda")
    return repeat(lambda: a @ a, 5000)


@workload("launch_bound")
def small_convnet_training() -> Step:
    torch = torch_module()
    layers = [
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
    ]
    train = training_on(torch.nn.Sequential(*layers, torch.nn.Linear(16 * 24 * 24, 10)).cuda())
    x = torch.randn(16, 1, 28, 28, device="cuda")
    return repeat(lambda: train(x), 50)


@workload("launch_bound")
def transformer_decode_small() -> Step:
    torch = torch_module()
    model, x = transformer(512, 12).eval(), torch.randn(1, 1, 512, device="cuda").bfloat16()
    return repeat(without_gradients(lambda: model(x)), 50)


@workload("data_starved")
def starved_memory_kernels() -> Step:
    x = torch_module().randn(2**30, device="cuda")
    return then_sleep(lambda: x.mul_(1.0001), 0.015)


@workload("data_starved")
def starved_resnet() -> Step:
    torch = torch_module()
    import torchvision

    model = torchvision.models.resnet50().cuda().bfloat16().eval()
    host = torch.randn(128, 3, 224, 224).bfloat16()
    return then_sleep(without_gradients(lambda: model(host.cuda())), 0.1)


@workload("data_starved")
def starved_training_slow_disk() -> Step:
    torch = torch_module()
    train, host = (
        training_on(linear_model(4096, 4), rows=8192, width=4096),
        torch.randn(8192, 4096).bfloat16().pin_memory(),
    )
    return then_sleep(lambda: train(host.cuda(non_blocking=True)), 0.4)


@workload("stalls_input_or_io")
def stalls_irregular() -> Step:
    torch = torch_module()
    a, chance = torch.randn(8192, 8192, device="cuda").bfloat16(), random.Random(7)

    def step() -> None:
        end = time.monotonic() + chance.uniform(0.4, 1.0)
        while time.monotonic() < end:
            for _ in range(5):
                torch.matmul(a, a)
            torch.cuda.synchronize()
        time.sleep(chance.uniform(0.4, 0.9))

    return step


@workload("stalls_input_or_io")
def stalls_memory_work() -> Step:
    torch = torch_module()
    x = torch.randn(2**29, device="cuda")

    def step() -> None:
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            for _ in range(10):
                x.add_(1)
            torch.cuda.synchronize()
        time.sleep(0.6)

    return step


@workload("underutilized")
def resnet_one_image_seldom() -> Step:
    torch = torch_module()
    import torchvision

    model, x = torchvision.models.resnet18().cuda().eval(), torch.randn(1, 3, 224, 224, device="cuda")
    return then_sleep(without_gradients(lambda: model(x)), 0.1)


@workload("underutilized")
def tiny_graph_polling() -> Step:
    torch = torch_module()
    model, x = linear_model(512, 12).eval(), torch.randn(1, 512, device="cuda").bfloat16()
    return then_sleep(capture_graph(without_gradients(lambda: model(x))).replay, 0.002)


@workload("mixed")
def language_model_training() -> Step:
    torch = torch_module()
    model, x = transformer(2048, 4), torch.randn(4, 2048, 2048, device="cuda").bfloat16()
    train = training_on(model)
    return repeat(lambda: train(x), 2)


@workload("mixed")
def vision_transformer_training() -> Step:
    torch = torch_module()
    import torchvision

    model = torchvision.models.vit_b_16().cuda().bfloat16()
    train, x = training_on(model), torch.randn(128, 3, 224, 224, device="cuda").bfloat16()
    return repeat(lambda: train(x), 2)


@workload("idle")
def idle_with_busy_cpu() -> Step:
    return lambda: use_cpu(0.2)
