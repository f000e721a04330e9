"""The update of a dynamic loss scale, as automatic mixed precision does it after each step."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.reduction.rows import gpu_context
from std.sys.info import has_accelerator


def _update(
    scale: Data[DType.float32],
    growth_tracker: Data[DType.int32],
    found_inf: Data[DType.float32],
    growth_factor: Float32,
    backoff_factor: Float32,
    growth_interval: Int64,
):
    """Backs off after an infinity; grows after `growth_interval` steps without one.
    """
    if found_inf.unsafe_load(0) != 0:
        scale.unsafe_store(
            0,
            scale.unsafe_load(0) * backoff_factor,
        )
        growth_tracker.unsafe_store(0, Int32(0))
        return
    var successful = growth_tracker.unsafe_load(0) + 1
    if Int64(successful) == growth_interval:
        var grown = scale.unsafe_load(0) * growth_factor
        # An infinite scale would never come back.
        if grown - grown == 0:
            scale.unsafe_store(0, grown)
        successful = 0
    growth_tracker.unsafe_store(0, successful)


def update_loss_scale(call: KernelCall) raises:
    """Updates a dynamic loss scale.

    Tensors, one element each: the scale (float32) and the number of successful steps in a row (int32), both updated; the flag
    of an infinite gradient (float32). Scalars: the growth factor, the backoff factor, the growth interval.

    Args:
        call: The call.
    """
    var scale = call.tensor(0).pointer[DType.float32]()
    var growth_tracker = call.tensor(1).pointer[DType.int32]()
    var found_inf = call.tensor(2).pointer[DType.float32]()
    var growth_factor = call.float_scalar(0).cast[DType.float32]()
    var backoff_factor = call.float_scalar(1).cast[DType.float32]()
    var growth_interval = Int64(call.int_scalar(2))
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_update](
            scale,
            growth_tracker,
            found_inf,
            growth_factor,
            backoff_factor,
            growth_interval,
            grid_dim=1,
            block_dim=1,
        )
    else:
        _update(
            scale,
            growth_tracker,
            found_inf,
            growth_factor,
            backoff_factor,
            growth_interval,
        )
