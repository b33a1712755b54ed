"""A fourth set of workloads with known bottlenecks, whose classes were written down before it was recorded.

Realistic programs with torch: prefill and decode of a language model, training with a loader, serving, checkpoints, and
single operations. Workloads without a clear class are omitted: kernels in the cache, histograms, graphs of tiny
kernels. `profile_bench --set fourth` records and classifies it. In the first run 46 of 47 labels were correct, 97.6 %
of the samples; the sort on the CPU took 0.15 s, too short for a stop.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.gpu.profile_record import (
    Step,
    autocast_training,
    capture_graph,
    classify_one_image,
    convolution,
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
    without_gradients,
    work_for,
    workload,
)

# Each thread reads words of host memory in order, over PCIe.
READ_HOST = r"""
extern "C" __global__ void work(const float4* host, float* out, long count) {
  float sum = 0;
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (long)blockDim.x) {
    float4 four = host[i]; sum += four.x + four.y + four.z + four.w;
  }
  if (sum == 12345.678f) { out[0] = sum; }
}"""
SPIN = r"""
extern "C" __global__ void work(double* out, int rounds) {
  float a = threadIdx.x, b = 1.0001f;
  for (int i = 0; i < rounds; i++) { a = a * b + 0.5f; b = b * a + 0.25f; }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a + b;
}"""
POLYNOMIAL = """
template <typename T> T polynomial(T x) {
  T y = x;
  for (int i = 0; i < 400; i++) { y = y * x + T(0.3); }
  return y;
}"""
MIX = """
template <typename T> T mix(T x) {
  for (int i = 0; i < 400; i++) { x ^= x << 7; x ^= x >> 9; x = x * 2654435761 + i; }
  return x;
}"""


@workload("compute_bound")
def fourth_prefill() -> Step:
    """Layers of the width of an 8B model, over 16,384 tokens."""
    torch = torch_module()
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    layers = [[random_bf16(*shape) for shape in shapes] for _ in range(4)]
    tokens, linear = random_bf16(16384, 4096), torch.nn.functional.linear

    def run() -> None:
        x = tokens
        for wide, out, up, down in layers:
            q, k, v = linear(torch.nn.functional.rms_norm(x, (4096,)), wide).split((4096, 1024, 1024), -1)
            q, k, v = (part.view(8, 2048, -1, 128).transpose(1, 2) for part in (q, k, v))
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + linear(attended.transpose(1, 2).reshape(16384, 4096), out)
            gate, value = linear(torch.nn.functional.rms_norm(x, (4096,)), up).chunk(2, -1)
            x = x + linear(torch.nn.functional.silu(gate) * value, down)

    return repeat(without_gradients(run), 2)


@workload("compute_bound")
def fourth_attention_backward() -> Step:
    torch = torch_module()
    q, k, v = (random_bf16(8, 16, 4096, 128).requires_grad_() for _ in range(3))

    def run() -> None:
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(attended, (q, k, v), attended)

    return repeat(run, 3)


@workload("compute_bound")
def fourth_tf32_batches() -> Step:
    torch = torch_module()
    torch.backends.cuda.matmul.allow_tf32 = True
    a = torch.randn(16, 4096, 4096, device="cuda")
    return repeat(lambda: torch.bmm(a, a), 3)


@workload("compute_bound")
def fourth_fp16_products_long() -> Step:
    torch = torch_module()
    a, b = torch.randn(8192, 28672, device="cuda").half(), torch.randn(28672, 8192, device="cuda").half()
    return repeat(lambda: a @ b, 3)


@workload("compute_bound")
def fourth_fp64_batches() -> Step:
    torch = torch_module()
    a = torch.randn(8, 3072, 3072, device="cuda", dtype=torch.float64)
    return repeat(lambda: torch.bmm(a, a), 2)


@workload("compute_bound")
def fourth_conv_fp16_1024() -> Step:
    return repeat(convolution(1024, 64, 28), 10)


@workload("compute_bound_no_tensor")
def fourth_fp32_batches() -> Step:
    torch = torch_module()
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(16, 2560, 2560, device="cuda")
    return repeat(lambda: torch.bmm(a, a), 3)


@workload("compute_bound_no_tensor")
def fourth_conv_fp32() -> Step:
    torch = torch_module()
    layer, x = torch.nn.Conv2d(256, 256, 3, padding=1).cuda(), torch.randn(64, 256, 56, 56, device="cuda")

    def run() -> None:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            layer(x)

    return repeat(without_gradients(run), 5)


@workload("compute_bound_no_tensor")
def fourth_polynomial_fp64() -> Step:
    torch = torch_module()
    chain, x = torch.cuda.jiterator._create_jit_fn(POLYNOMIAL), torch.rand(2**26, device="cuda", dtype=torch.float64)
    return repeat(lambda: chain(x), 2)


@workload("compute_bound_no_tensor")
def fourth_integer_mix() -> Step:
    torch = torch_module()
    chain = torch.cuda.jiterator._create_jit_fn(MIX)
    x = torch.randint(0, 2**31 - 1, (2**26,), device="cuda", dtype=torch.int32)
    return repeat(lambda: chain(x), 2)


@workload("compute_bound_no_tensor")
def fourth_complex_products() -> Step:
    torch = torch_module()
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.complex64)
    return repeat(lambda: a @ a, 3)


@workload("memory_bound")
def fourth_cross_entropy() -> Step:
    torch = torch_module()
    x, words = random_bf16(8192, 128256), torch.randint(0, 128256, (8192,), device="cuda")
    return repeat(without_gradients(lambda: torch.nn.functional.cross_entropy(x, words)), 5)


@workload("memory_bound")
def fourth_adamw_foreach() -> Step:
    torch = torch_module()
    values = [torch.nn.Parameter(torch.randn(2**25, device="cuda")) for _ in range(16)]
    for value in values:
        value.grad = torch.randn_like(value)
    return repeat(torch.optim.AdamW(values, lr=1e-4, foreach=True).step, 3)


@workload("memory_bound")
def fourth_fourier() -> Step:
    torch = torch_module()
    x = torch.randn(64, 2048, 2048, device="cuda", dtype=torch.complex64)
    return repeat(lambda: torch.fft.fft2(x), 5)


@workload("memory_bound")
def fourth_batch_norm_and_relu() -> Step:
    torch = torch_module()
    layer, x = torch.nn.BatchNorm2d(256).cuda().half().eval(), torch.randn(256, 256, 56, 56, device="cuda").half()
    return repeat(without_gradients(lambda: torch.relu(layer(x))), 20)


@workload("memory_bound")
def fourth_kv_cache() -> Step:
    """One new token of each of 64 conversations attends to 8,192 tokens."""
    torch = torch_module()
    q, k, v = random_bf16(64, 32, 1, 128), random_bf16(64, 32, 8192, 128), random_bf16(64, 32, 8192, 128)
    return repeat(without_gradients(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)), 10)


@workload("memory_bound")
def fourth_sparse_times_vector() -> Step:
    torch = torch_module()
    rows, each = 2**22, 32
    columns = torch.randint(0, rows, (rows * each,), device="cuda", dtype=torch.int32)
    starts = torch.arange(0, rows * each + 1, each, device="cuda", dtype=torch.int32)
    matrix = torch.sparse_csr_tensor(starts, columns, torch.randn(rows * each, device="cuda"), (rows, rows))
    x = torch.randn(rows, 1, device="cuda")
    return repeat(lambda: matrix @ x, 10)


@workload("memory_bound")
def fourth_gelu_and_residual() -> Step:
    torch = torch_module()
    x = torch.randn(2**29, device="cuda").half()
    return repeat(without_gradients(lambda: torch.nn.functional.gelu(x) + x), 10)


@workload("memory_bound")
def fourth_gather_wide_rows() -> Step:
    torch = torch_module()
    table, index = random_bf16(2**20, 4096), torch.randint(0, 2**20, (2**18,), device="cuda")
    return repeat(lambda: table.index_select(0, index), 10)


@workload("memory_bound")
def fourth_max_pool() -> Step:
    torch = torch_module()
    x = torch.randn(128, 64, 256, 256, device="cuda").half().to(memory_format=torch.channels_last)
    return repeat(without_gradients(lambda: torch.nn.functional.max_pool2d(x, 2)), 20)


@workload("pcie_bound")
def fourth_to_gpu_pinned_1m() -> Step:
    return copies(2**20, is_pinned=True, to_gpu=True)


@workload("pcie_bound")
def fourth_from_gpu_pinned_512m() -> Step:
    return copies(2**29, is_pinned=True, to_gpu=False)


@workload("pcie_bound")
def fourth_from_gpu_pageable_16m() -> Step:
    return copies(2**24, is_pinned=False, to_gpu=False)


@workload("pcie_bound")
def fourth_numpy_arrays_to_gpu() -> Step:
    torch = torch_module()
    import numpy

    host = numpy.ones((4096, 4096), dtype=numpy.float32)
    return repeat(lambda: torch.from_numpy(host).cuda(), 10)


@workload("pcie_bound")
def fourth_kernel_reads_host() -> Step:
    torch = torch_module()
    import cupy

    work, host = cupy.RawKernel(READ_HOST, "work"), torch.ones(2**28, pin_memory=True)
    out = cupy.zeros(1, dtype=cupy.float32)

    def step() -> None:
        work((132 * 8,), (256,), (cupy.uint64(host.data_ptr()), out, cupy.int64(host.numel() // 4)))
        cupy.cuda.get_current_stream().synchronize()

    return step


@workload("launch_bound")
def fourth_gpt2_decodes() -> Step:
    torch = torch_module()
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda().half().eval()
    words = torch.randint(0, 50000, (1, 16), device="cuda")
    return repeat(
        without_gradients(lambda: model.generate(words, max_new_tokens=32, do_sample=False, pad_token_id=0)), 1
    )


@workload("launch_bound")
def fourth_asks_each_step() -> Step:
    x = torch_module().rand(1000, device="cuda")
    return repeat(lambda: float((x * 2).sum()), 1000)


@workload("launch_bound")
def fourth_gru_cell_loop() -> Step:
    torch = torch_module()
    return recurrence(torch.nn.GRUCell(512, 512).cuda(), torch.randn(8, 512, device="cuda"))


@workload("launch_bound")
def fourth_small_mlp_training() -> Step:
    torch = torch_module()
    layers = [part for _ in range(8) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    train, x = training_on(torch.nn.Sequential(*layers).cuda()), torch.randn(64, 256, device="cuda")
    return repeat(lambda: train(x), 50)


@workload("launch_bound")
def fourth_resnet18_one_image() -> Step:
    return repeat(classify_one_image("resnet18"), 50)


@workload("data_starved")
def fourth_starved_20_of_100ms() -> Step:
    run = convolution(512, 64, 56)
    return then_sleep(lambda: work_for(run, 0.02), 0.08)


@workload("data_starved")
def fourth_starved_25_of_55ms() -> Step:
    a = random_bf16(8192, 8192)
    return then_sleep(lambda: work_for(lambda: a @ a, 0.025), 0.03)


@workload("data_starved")
def fourth_numpy_augments() -> Step:
    """One core crops and flips images, then a ResNet trains on them."""
    torch = torch_module()
    import numpy
    import torchvision

    train = training_on(torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last))
    images = numpy.random.default_rng(1).integers(0, 255, (64, 256, 256, 3), dtype=numpy.uint8)

    def step() -> None:
        cut = [numpy.ascontiguousarray(image[:224, :224][::-1]).astype(numpy.float32) / 255 - 0.5 for image in images]
        train(torch.from_numpy(numpy.stack(cut)).permute(0, 3, 1, 2).cuda())
        time.sleep(0.15)

    return step


@workload("data_starved")
def fourth_batches_from_files() -> Step:
    torch = torch_module()
    folder, train = Path(tempfile.mkdtemp()), training_on(linear_model(4096, 4), rows=8192, width=4096)
    for number in range(4):
        torch.save(torch.randn(8192, 4096), folder / f"{number}.pt")
    turn = iter(range(10**9))
    return then_sleep(lambda: train(torch.load(folder / f"{next(turn) % 4}.pt").cuda().bfloat16()), 0.05)


@workload("data_starved")
def fourth_light_step_after_slow_loader() -> Step:
    torch = torch_module()
    host = torch.randn(2**24)

    def step() -> None:
        time.sleep(0.5)
        (host.cuda() * 2).sum().item()

    return step


@workload("stalls_input_or_io")
def fourth_checkpoint_of_the_model() -> Step:
    torch = torch_module()
    model = linear_model(8192, 5)
    train, path = training_on(model, rows=8192, width=8192), Path(tempfile.mkdtemp(), "model.pt")
    x = random_bf16(8192, 8192)

    def step() -> None:
        work_for(lambda: train(x), 1.0)
        torch.save(model.state_dict(), path)

    return step


@workload("stalls_input_or_io")
def fourth_stops_500_of_1500ms() -> Step:
    a = random_bf16(8192, 8192)
    return then_sleep(lambda: work_for(lambda: a @ a, 1.0), 0.5)


@workload("stalls_input_or_io")
def fourth_stops_1500_of_3500ms() -> Step:
    train, x = training_on(transformer(1024, 6)), random_bf16(8, 1024, 1024)
    return then_sleep(lambda: work_for(lambda: train(x), 2.0), 1.5)


@workload("stalls_input_or_io")
def fourth_metrics_on_the_cpu() -> Step:
    import numpy

    train, x = training_on(linear_model(4096, 8), rows=8192, width=4096), random_bf16(8192, 4096)
    values = numpy.random.default_rng(1).random(10**7)

    def step() -> None:
        work_for(lambda: train(x), 1.2)
        numpy.sort(values)

    return step


@workload("underutilized")
def fourth_encoder_request_each_50ms() -> Step:
    model, x = transformer(768, 12).eval(), random_bf16(1, 64, 768)
    return then_sleep(without_gradients(lambda: model(x)), 0.05)


@workload("underutilized")
def fourth_30_frames_a_second() -> Step:
    return then_sleep(classify_one_image("resnet50"), 0.027)


@workload("underutilized")
def fourth_twenty_blocks() -> Step:
    return kernel(SPIN, "work", 20, 512, 200000)


@workload("underutilized")
def fourth_small_graph_each_5ms() -> Step:
    model, x = linear_model(768, 16).eval(), random_bf16(1, 768)
    return then_sleep(capture_graph(without_gradients(lambda: model(x))).replay, 0.005)


@workload("mixed")
def fourth_encoder_training_autocast() -> Step:
    torch = torch_module()
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randn(32, 512, 768, device="cuda")

    return autocast_training(model, optimizer, x)


@workload("mixed")
def fourth_products_then_softmax() -> Step:
    """20 ms of each in turn."""
    torch = torch_module()
    a, x = random_bf16(8192, 8192), torch.randn(16384, 16384, device="cuda")

    def step() -> None:
        work_for(lambda: a @ a, 0.02)
        work_for(lambda: torch.softmax(x, -1), 0.02)

    return step


@workload("idle")
def fourth_100_gib_held() -> Step:
    return hold_memory(100 * 2**30)


@workload("idle")
def fourth_after_products() -> Step:
    matmul("bfloat16", 8192, 200)()

    def step() -> None:
        time.sleep(0.1)

    return step
