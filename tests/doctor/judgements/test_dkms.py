"""`dkms status`: whether the driver is built for the running kernel and for the one of the next boot."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask, causes

OK = "nvidia/550.54.15, 5.15.0-105-generic, x86_64: installed\n"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("driver_not_loaded", "$ dkms status\nnvidia/550.54.15: added\n"),
        ("driver_not_loaded", f"root@gpu07:~# uname -r\n5.15.0-107-generic\nroot@gpu07:~# dkms status\n{OK}"),
        (
            "driver_not_loaded",
            "Linux gpu07 5.4.0-150-generic #167-Ubuntu SMP\nnvidia, 535.129.03, 5.4.0-148-generic, x86_64: installed\n",
        ),
        (
            "driver_not_loaded",
            (
                "  Static hostname: gpu07\n           Kernel: Linux 5.14.0-503.22.1.el9_5.x86_64\n"
                "nvidia-open/575.57.08, 5.14.0-427.13.1.el9_4.x86_64, x86_64: installed\n"
            ),
        ),
        ("next_boot_without_driver", f"$ ls /lib/modules\n5.15.0-105-generic  5.15.0-107-generic\n{OK}"),
        ("next_boot_without_driver", f"{OK}nvidia/550.54.15, 5.15.0-107-generic, x86_64: built\n"),
        ("next_boot_without_driver", f"{OK}mlnx-ofed-kernel/24.04, 5.15.0-107-generic, x86_64: installed\n"),
        ("next_boot_without_driver", f"ii  linux-image-5.15.0-107-generic  5.15.0-107.117  amd64  kernel\n{OK}"),
        (
            "unknown",
            OK.rstrip() + " (WARNING! Diff between built and installed module!)\n",
        ),
    ],
)
def test_a_kernel_without_the_module_is_found(cause: str, text: str) -> None:
    assert causes(ask(text)) == [cause]


@pytest.mark.parametrize(
    "text",
    [
        f"$ uname -r\n5.15.0-105-generic\n$ dkms status\n{OK}",
        # A kernel that was replaced is not booted.
        f"{OK}mlnx-ofed-kernel/24.04, 5.15.0-97-generic, x86_64: installed\n",
        "nvidia-fs/2.20.6: added\n",
        "mlnx-ofed-kernel/24.04, 5.15.0-107-generic, x86_64: installed\n",
        # Two nodes with different kernels, each with its own module.
        f"===== gpu07 =====\n{OK}===== gpu08 =====\n{OK.replace('-105-', '-107-')}",
    ],
)
def test_a_module_for_each_kernel_that_may_boot_is_no_fault(text: str) -> None:
    assert not ask(text).findings


def test_the_node_of_the_prompt_is_named_and_the_kernel_stays_readable_in_the_evidence() -> None:
    finding = ask(f"root@gpu07:~# uname -r\n5.15.0-107-generic\nroot@gpu07:~# dkms status\n{OK}").findings[0]
    assert finding.where["node"] == "gpu07"
    assert "5.15.0-105-generic" in finding.evidence[0].text
