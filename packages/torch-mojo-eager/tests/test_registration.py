"""Registering the device, also where torch was used before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import torch_mojo_eager

BACKWARD = "x = torch.ones(3, requires_grad=True); (x * 2).sum().backward()"


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "MOJO_RUNTIME_DEVICES": "cpu:2", "TORCH_MOJO_BACKEND_TRACE": "0", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_registering_again_does_nothing(device):
    torch_mojo_eager.register_mojo_devices()
    torch_mojo_eager.register_mojo_devices()


def test_backward_before_the_registration():
    """The engine starts one thread per device in the process's first backward, when there was none of ours."""
    assert (
        run(f"""
        import torch
        for _ in range(2): {BACKWARD}
        import torch_mojo_eager
        torch_mojo_eager.register_mojo_devices()
        for place in ("mojo", "mojo:1", "cpu"):
            x = torch.ones(3, device=place, requires_grad=True)
            (x * 2).sum().backward()
            y = x.detach().requires_grad_()
            (torch.utils.checkpoint.checkpoint(lambda t: t * 3, y, use_reentrant=True)).sum().backward()
            print(x.grad.tolist(), y.grad.tolist())
    """).splitlines()
        == ["[2.0, 2.0, 2.0] [3.0, 3.0, 3.0]"] * 3
    )


def test_no_device(tmp_path):
    """Where MOJO_RUNTIME_DEVICES asks for GPUs and there is none, programs can fall back."""
    assert (
        run(
            """
        import torch
        import torch_mojo_eager
        torch_mojo_eager.register_mojo_devices()
        if torch.accelerator.device_count() > 0:
            print("cpu")  # this machine has a GPU
        else:
            assert not torch.accelerator.is_available()
            print(torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu"))
            assert torch.accelerator.current_accelerator().type == "mojo"
            x = torch.ones(2, requires_grad=True)
            (x * 2).sum().backward()
            torch.manual_seed(0)
        """,
            MOJO_RUNTIME_DEVICES="gpu",
        )
        == "cpu"
    )


def test_slot_that_is_taken():
    assert "taken by 'other'" in run("""
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import torch_mojo_eager
        try:
            torch_mojo_eager.register_mojo_devices()
        except RuntimeError as error:
            print(error)
    """)
