"""Times of GPU kernels come from torch.profiler's own events, by kind; the names are of a profile on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torch_python
from watchkeeper.instrument.kernels import find_kind

BEGIN = """
import logging, sys
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.training import TrainingMonitor
logging.basicConfig(stream=sys.stdout, format="%(message)s")
monitor = TrainingMonitor("llama", Exports())
"""
END = """
page = MetricsPage()
monitor.write(page)
print("".join(line + chr(10) for line in page.encode().decode().splitlines() if "kernel" in line or "profiled" in line))
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(…)", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel<…>(pytorch_flash::Flash_fwd_params)", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(…)", "other"),
    ],
)
def test_a_kernel_is_of_one_of_five_kinds(name: str, kind: str) -> None:
    assert find_kind(name) == kind


@pytest.mark.servers
@pytest.mark.slow
def test_kernels_are_added_up_and_named_ranges_are_not(tmp_path: Path) -> None:
    program = """
class Profile:
    def events(self):
        cuda = {"device_type": DeviceType.CUDA}
        return [
            FunctionEvent(0, "cudaLaunchKernel", 1, 0, 1000),
            FunctionEvent(1, "nvjet_tst", 1, 1000, 3000, **cuda),
            FunctionEvent(2, "ncclDevKernel_AllReduce", 2, 2000, 6000, **cuda),
            FunctionEvent(3, "ProfilerStep#5", 1, 0, 9000, **cuda),
            FunctionEvent(4, "forward", 1, 0, 10000, is_user_annotation=True, **cuda),
        ]
monitor.record_kernels(Profile())
monitor.record_kernels(Profile())
"""
    output = torch_python.run(BEGIN + program + END, folder=tmp_path)
    labels = 'job_name="llama",rank="0",world_size="1"'
    assert f'training_kernel_seconds_total{{{labels},kind="matmul"}} 0.004' in output
    assert f'training_kernel_seconds_total{{{labels},kind="communication"}} 0.008' in output
    assert f'training_kernel_seconds_total{{{labels},kind="other"}} 0\n' in output
    assert f"training_profiled_seconds_total{{{labels}}} 0.02" in output


@pytest.mark.servers
@pytest.mark.slow
def test_a_profile_without_a_gpu_is_unknown_and_says_so(tmp_path: Path) -> None:
    program = """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU], on_trace_ready=monitor.record_kernels):
    torch.randn(8, 8) @ torch.randn(8, 8)
monitor.record_kernels(None)
"""
    output = torch_python.run(BEGIN + program + END, folder=tmp_path)
    assert "add ProfilerActivity.CUDA" in output
    assert "profile not read: " in output
    assert "training_kernel" not in output
    assert "training_profiled" not in output
