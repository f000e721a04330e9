"""Saving, loading, copying and exchanging tensors with other libraries and processes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import textwrap
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing  # its reducers


@pytest.fixture
def saved(device, tmp_path):
    """A file with tensors of the device, some of which share a storage, and a CPU tensor."""
    base = torch.arange(12.0, device=device).reshape(3, 4)
    path = tmp_path / "tensors.pt"
    contents = {"base": base, "row": base[1], "transposed": base.t(), "half": base.bfloat16(), "host": torch.ones(2)}
    torch.save(contents, path)
    return path


MAP_LOCATIONS = {
    "none": (lambda device: None, "mojo:0", "cpu"),
    "cpu": (lambda device: "cpu", "cpu", "cpu"),
    "device": (lambda device: device, "mojo:0", "mojo:0"),
    "device with index": (lambda device: torch.device(device.type, 1), "mojo:1", "mojo:1"),
    "string": (lambda device: f"{device.type}:1", "mojo:1", "mojo:1"),
    "mapping": (lambda device: {"cpu": f"{device.type}:1"}, "mojo:0", "mojo:1"),
    "mapping of the device": (lambda device: {f"{device.type}:0": "cpu"}, "cpu", "cpu"),
    "mapping between devices": (lambda device: {f"{device.type}:0": f"{device.type}:1"}, "mojo:1", "cpu"),
    "function": (lambda device: lambda storage, location: storage, "cpu", "cpu"),
}


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"weights_only": False}], ids=["plain", "mmap", "pickle"])
@pytest.mark.parametrize("form", MAP_LOCATIONS)
def test_map_location(device, second, saved, form, options):
    make, place, place_of_host = MAP_LOCATIONS[form]
    loaded = torch.load(saved, map_location=make(device), **options)
    assert str(loaded["base"].device) == place and str(loaded["host"].device) == place_of_host
    expected = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(loaded["base"].cpu(), expected) and torch.equal(loaded["transposed"].cpu(), expected.t())
    assert loaded["half"].dtype == torch.bfloat16
    loaded["row"].fill_(-1)
    assert loaded["base"].cpu()[1].tolist() == [-1] * 4 and loaded["transposed"].cpu()[:, 1].tolist() == [-1] * 4


def test_checkpoint_of_a_training(device, tmp_path):
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optimizer):
        x = torch.linspace(-1, 1, 20, device=device).reshape(5, 4)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer)
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    train(model, optimizer)
    for map_location in (None, "cpu", device):
        other, other_optimizer = make()
        checkpoint = torch.load(path, map_location=map_location)
        other.load_state_dict(checkpoint["model"])
        other_optimizer.load_state_dict(checkpoint["optimizer"])
        assert other_optimizer.state[other[0].weight]["exp_avg"].device.type == device.type
        train(other, other_optimizer)
        for ours, theirs in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
            assert torch.equal(ours.cpu(), theirs.cpu())
    assigned, _ = make()
    assigned.load_state_dict(torch.load(path, map_location=device)["model"], assign=True)
    assert assigned[0].weight.device.type == device.type


def test_whole_module(device, tmp_path):
    model = torch.nn.Linear(3, 2).to(device)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded.weight.device == model.weight.device and loaded.weight.requires_grad
    assert torch.equal(loaded.weight.detach().cpu(), model.weight.detach().cpu())
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt")


def test_loads_where_the_package_is_not(saved):
    """A checkpoint is read by stock PyTorch: nothing of ours can be imported there."""
    program = f"""
    import sys
    for name in ("torch_mojo_backend", "torch_mojo_eager", "mojo_runtime", "mojo_kernels", "torch_mojo_compile"):
        sys.modules[name] = None
    import torch
    loaded = torch.load({str(saved)!r}, map_location="cpu")
    assert loaded["base"].sum() == 66 and loaded["row"].tolist() == [4, 5, 6, 7], loaded
    loaded = torch.load({str(saved)!r}, map_location="cpu", mmap=True)
    assert loaded["transposed"].shape == (4, 3)
    try:
        torch.load({str(saved)!r})
    except Exception as error:
        print(type(error).__name__)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "RuntimeError"


def test_copies_and_pickles(device):
    x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
    y = {"x": x, "view": x.detach()[0]}
    copied = copy.deepcopy({"x": x, "list": [x]})
    assert copied["list"][0] is copied["x"] and copied["x"].requires_grad and copied["x"] is not x
    pickled = pickle.loads(pickle.dumps(y))
    assert pickled["x"].device == x.device and pickled["x"].requires_grad
    assert torch.equal(pickled["view"].cpu(), x.detach()[0].cpu())
    assert copy.copy(x).data_ptr() == x.data_ptr()
    storage = copy.deepcopy(x.untyped_storage())
    assert storage.device == x.device and storage.nbytes() == 24 and storage.data_ptr() != x.data_ptr()
    assert [pickle.loads(pickle.dumps(value)) for value in (device, torch.device(device.type, 1))] == [
        device,
        torch.device(device.type, 1),
    ]
    assert x.untyped_storage().cpu().nbytes() == 24 and x.untyped_storage().tolist() == list(
        np.arange(6, dtype=np.float32).tobytes()
    )


def test_legacy_format(device):
    buffer = io.BytesIO()
    x = torch.arange(4.0, device=device)
    torch.save([x, x[1:]], buffer, _use_new_zipfile_serialization=False)
    for map_location, place in ((None, device.type), ("cpu", "cpu")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=map_location)
        assert loaded[0].device.type == place and loaded[1].tolist() == [1, 2, 3]
        loaded[1].fill_(0)
        assert loaded[0].tolist() == [0, 0, 0, 0]


def test_swap_tensors(device):
    x, y = torch.ones(2, device=device), torch.zeros(3, device=device)
    torch.utils.swap_tensors(x, y)
    assert x.tolist() == [0] * 3 and y.tolist() == [1] * 2
    host = torch.full((4,), 7.0)
    torch.utils.swap_tensors(x, host)
    assert x.tolist() == [7] * 4 and host.device.type == device.type
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer = torch.nn.Linear(2, 2)
        weight, before = layer.weight, layer.weight.detach().clone()
        layer.to(device)
        assert layer.weight is weight and weight.device.type == device.type
        assert torch.equal(weight.detach().cpu(), before)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_safetensors(device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    x = {"a": torch.arange(6.0, device=device).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16, device=device)}
    safetensors.save_file(x, tmp_path / "x.safetensors")
    loaded = safetensors.load_file(tmp_path / "x.safetensors")  # it knows no devices of extensions
    for name, tensor in x.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name].to(device).cpu(), tensor.cpu())
    model = torch.nn.Linear(2, 3).to(device)
    safetensors.save_model(model, tmp_path / "model.safetensors")
    other = torch.nn.Linear(2, 3).to(device)
    safetensors.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other.weight.detach().cpu(), model.weight.detach().cpu())


def test_numpy(device):
    x = torch.arange(3.0, device=device)
    for convert in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.array(x)):
        with pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
            convert()
    assert x.cpu().numpy().tolist() == [0, 1, 2] and x.numpy(force=True).tolist() == [0, 1, 2]
    assert torch.as_tensor(np.arange(3), device=device).tolist() == [0, 1, 2]
    assert torch.from_numpy(np.arange(3)).to(device).device.type == device.type
    assert torch.tensor(np.float32(2.5), device=device).item() == 2.5
    x[np.array([0, 2])] = torch.from_numpy(np.array([5.0, 6.0], np.float32)).to(device)
    assert x.tolist() == [5, 1, 6]


def test_dlpack(device, side, hold):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    for exchanged in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))):
        assert exchanged.device == x.device and exchanged.data_ptr() == x.data_ptr()
        exchanged[0, 0] += 1
    assert x[0, 0].item() == 2
    assert torch.from_dlpack(x.t()).stride() == (1, 3)
    allocated = torch.accelerator.memory_allocated()
    consumed = torch.from_dlpack(torch.ones(1000, device=device))
    assert torch.accelerator.memory_allocated() - allocated == 4000 and consumed.sum().item() == 1000
    del consumed
    gc.collect()
    assert torch.accelerator.memory_allocated() == allocated
    with pytest.raises((TypeError, RuntimeError, BufferError)):
        np.from_dlpack(x)


def test_sharing_with_processes_is_refused(device):
    x = torch.ones(3, device=device)
    model = torch.nn.Linear(2, 2).to(device)
    for share in (x.share_memory_, model.share_memory):
        with pytest.raises(NotImplementedError, match=r"\.cpu\(\)"):
            share()
    with pytest.raises(NotImplementedError, match=r"\.cpu\(\)"):
        ForkingPickler.dumps(x)
    assert torch.ones(2).share_memory_().is_shared()
