"""The `mojo` device for eager PyTorch.

`register_mojo_devices()` makes it torch's current accelerator; from then on it is used through `torch.accelerator` and
`torch.device("mojo")` like any other device.
"""

from __future__ import annotations

import threading

__version__ = "0.1.0"

_lock = threading.Lock()
_libraries: list[object] = []  # torch.library.Library objects, whose registrations live as long as they do


def register_mojo_devices() -> None:
    """Registers the device with torch. Calling it again does nothing, so that libraries can make sure of it.

    Raises:
        RuntimeError: If another backend has taken torch's PrivateUse1 device, or the shim cannot be built or loaded.
    """
    with _lock:
        if _libraries:
            return
        import torch
        from torch.utils import backend_registration

        taken = torch._C._get_privateuse1_backend_name()
        if taken not in ("privateuseone", "mojo"):
            raise RuntimeError(
                f"torch's one slot for a device of an extension (PrivateUse1) is taken by {taken!r}; mojo cannot be "
                "registered in this process"
            )
        import mojo_runtime
        from torch_mojo_eager import autocast, device_module, interchange, shim
        from torch_mojo_eager.ops import registry

        mojo_runtime.initialize()
        mojo = torch.library.Library("mojo", "DEF")
        mojo.define("default_generator(int device) -> Generator")
        mojo.define("philox_state(Generator? generator, int device, int increment) -> int[]")
        mojo.define("launch(str key, Tensor?[] tensors, int[] scalars) -> ()")
        mojo.define("host_aliases(Tensor[] tensors) -> Tensor[]")
        mojo.define("from_hosts(Tensor[] hosts, int device) -> Tensor[]")
        complex_forms = torch.library.Library("mojo_complex", "DEF")
        registry.define_complex_forms(complex_forms)
        aten = torch.library.Library("aten", "IMPL")
        loaded = shim.load()
        devices = mojo_runtime.devices()
        loaded.initialize("mojo", [mojo_runtime.PhiloxGenerator(device).max_blocks for device in devices])
        backend_registration.rename_privateuse1_backend("mojo")
        torch._register_device_module("mojo", device_module.create())
        backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
        registry.register_all(loaded, aten)
        autocast.register(loaded, aten)
        interchange.install()
        _libraries.extend((mojo, complex_forms, aten))
        if {device.kind for device in devices} == {"cpu"}:
            # As the CPU's, the backward pass runs in its caller's thread: waking a thread of autograd and waiting for
            # it costs more than a small kernel. This says so for the thread that registers.
            torch.autograd.set_multithreading_enabled(False)


__all__ = ["__version__", "register_mojo_devices"]
