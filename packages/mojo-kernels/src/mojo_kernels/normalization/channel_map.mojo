"""Maps of the elements of channels, which batch and group normalization have in common."""

from max.gpu import block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace, ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.normalization.channels import (
    DY,
    GPU_BLOCK,
    GRAIN,
    OUT,
    Channels,
    X,
)
from mojo_kernels.reduction.rows import gpu_context, row_each
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct Coefficients[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """Of the map (x - center) scale + shift, or dy factor + (x - center) scale + shift, for each sample and channel.

    Parameters:
        dtype: The type that computes.
    """

    comptime device_type: AnyType = Self
    """The type on the device."""

    var data: Data[Self.dtype]
    """Arrays of `size` numbers: center, scale, shift, factor."""
    var size: Int64
    """How many numbers each array has."""
    var stride: Int64
    """The distance between two samples: the number of channels, or 0 where all have the same."""

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Coefficients"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def array(self, which: Int, sample: Int) -> Data[Self.dtype]:
        """The numbers of a sample's channels.

        Args:
            which: 0 center, 1 scale, 2 shift, 3 factor.
            sample: The sample.

        Returns:
            The first channel's number.
        """
        return self.data.unsafe_offset(
            which * Int(self.size) + sample * Int(self.stride)
        )


def each_number[A: ElementAction](call: KernelCall, action: A, n: Int) raises:
    """Runs an action for each number below `n`.

    Parameters:
        A: The action's type; it has one operand, whose offset is the number.

    Args:
        call: The call.
        action: The action.
        n: How many numbers.
    """
    var space = IndexSpace[A.operands]()
    space.append(n, StaticTuple[Int, A.operands](fill=1))
    each_element(call, action, space)


@inline(.always)
def _mapped[
    compute: DType, operands: Int, w: Int
](
    x: SIMD[compute, w],
    dy: SIMD[compute, w],
    center: SIMD[compute, w],
    scale: SIMD[compute, w],
    shift: SIMD[compute, w],
    factor: SIMD[compute, w],
) -> SIMD[compute, w]:
    """The map of `Coefficients`."""
    var result = (x - center) * scale + shift
    comptime if operands == 3:
        result += dy * factor
    return result


def _map_block[
    dtype: DType, operands: Int
](
    target: Data[dtype],
    x: Data[dtype],
    dy: Data[dtype],
    coefficients: Coefficients[compute_type[dtype]()],
    layout: Channels[operands],
):
    """One element per thread and step, neighbours in memory side by side."""
    comptime compute = compute_type[dtype]()
    var channels = Int(layout.channels)
    var positions = Int(layout.positions)
    var count = Int(layout.batch) * channels * positions
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    while i < count:
        var channel: Int
        var position: Int
        var sample: Int
        if layout.along != 0:
            sample, channel = divmod(i // positions, channels)
            position = i % positions
        else:
            sample, position = divmod(i // channels, positions)
            channel = i % channels
        var g = Scalar[compute](0)
        var factor = Scalar[compute](0)
        comptime if operands == 3:
            g = dy.unsafe_load(
                layout.offset(DY, sample, channel, position)
            ).cast[compute]()
            factor = coefficients.array(3, sample).unsafe_load(channel)
        target.unsafe_store(
            layout.offset(OUT, sample, channel, position),
            narrow[dtype](
                _mapped[compute, operands, 1](
                    x.unsafe_load(
                        layout.offset(X, sample, channel, position)
                    ).cast[compute](),
                    g,
                    coefficients.array(0, sample).unsafe_load(channel),
                    coefficients.array(1, sample).unsafe_load(channel),
                    coefficients.array(2, sample).unsafe_load(channel),
                    factor,
                )
            ),
        )
        i += Int(grid_dim.x) * GPU_BLOCK


def map_channels[
    dtype: DType, operands: Int
](
    call: KernelCall,
    layout: Channels[operands],
    target: Data[dtype],
    x: Data[dtype],
    dy: Data[dtype],
    coefficients: Coefficients[compute_type[dtype]()],
) raises:
    """Writes the map of `Coefficients` of every element.

    Parameters:
        dtype: The element type.
        operands: 2, or 3 with a gradient.

    Args:
        call: The call.
        layout: The tensors: `target`, `x`, and with three operands `dy`.
        target: The result.
        x: The normalized tensor.
        dy: The gradient; not read with two operands.
        coefficients: The map.
    """
    comptime compute = compute_type[dtype]()
    var channels = Int(layout.channels)
    var positions = Int(layout.positions)
    var rows = Int(layout.batch) * positions
    if rows * channels == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_map_block[dtype, operands]](
            target,
            x,
            dy,
            coefficients,
            layout,
            grid_dim=min(ceil_div(rows * channels, GPU_BLOCK), 1 << 16),
            block_dim=GPU_BLOCK,
        )
    else:
        var along = layout.along != 0

        def run(unit: Int) {imm}:
            var sample: Int
            var inside: Int
            sample, inside = divmod(unit, channels if along else positions)
            var channel = inside if along else 0
            var position = 0 if along else inside
            var row = target.unsafe_offset(
                layout.offset(OUT, sample, channel, position)
            )
            var source = x.unsafe_offset(
                layout.offset(X, sample, channel, position)
            )
            var gradient = dy
            comptime if operands == 3:
                gradient = dy.unsafe_offset(
                    layout.offset(DY, sample, channel, position)
                )
            var center = coefficients.array(0, sample)
            var scale = coefficients.array(1, sample)
            var shift = coefficients.array(2, sample)
            var factor = (
                coefficients.array(3, sample) if operands == 3 else center
            )
            if along:
                var c = center.unsafe_load(channel)
                var s = scale.unsafe_load(channel)
                var b = shift.unsafe_load(channel)
                var f = factor.unsafe_load(channel)

                def element[w: Int](i: Int) {imm}:
                    var g = SIMD[compute, w](0)
                    comptime if operands == 3:
                        g = gradient.unsafe_load[width=w](i).cast[compute]()
                    row.unsafe_store(
                        i,
                        narrow[dtype](
                            _mapped[compute, operands, w](
                                source.unsafe_load[width=w](i).cast[compute](),
                                g,
                                SIMD[compute, w](c),
                                SIMD[compute, w](s),
                                SIMD[compute, w](b),
                                SIMD[compute, w](f),
                            )
                        ),
                    )

                row_each[0, compute](positions, element)
            else:

                def column[w: Int](i: Int) {imm}:
                    var g = SIMD[compute, w](0)
                    var f = SIMD[compute, w](0)
                    comptime if operands == 3:
                        g = gradient.unsafe_load[width=w](i).cast[compute]()
                        f = factor.unsafe_load[width=w](i)
                    row.unsafe_store(
                        i,
                        narrow[dtype](
                            _mapped[compute, operands, w](
                                source.unsafe_load[width=w](i).cast[compute](),
                                g,
                                center.unsafe_load[width=w](i),
                                scale.unsafe_load[width=w](i),
                                shift.unsafe_load[width=w](i),
                                f,
                            )
                        ),
                    )

                row_each[0, compute](channels, column)

        def some_runs(start: Int, end: Int) {imm}:
            for unit in range(start, end):
                run(unit)

        var length = positions if along else channels
        parallel_ranges(
            call,
            rows * channels // length,
            GRAIN // length,
            some_runs,
        )
