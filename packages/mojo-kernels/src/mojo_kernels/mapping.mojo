"""Copies in which each dimension maps its coordinates to the input's: padding, flips, rolls, nearest neighbours."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall, Words
from mojo_kernels.indexing.element import GPU_BLOCK, GPU_MAX_BLOCKS
from mojo_kernels.layout import (
    MAX_DIMENSIONS,
    MAX_GPU_DIMENSIONS,
    ceil_div,
    parallel_ranges,
)
from mojo_kernels.pointwise.function import storage_type, to_storage
from mojo_kernels.reduction.rows import gpu_context
from mojo_kernels.resampling.axis import (
    CONSTANT,
    IDENTITY,
    NEAREST,
    REPLICATE,
    ROLL,
    Axis,
    AxisReader,
)
from mojo_kernels.volume import split
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.collections import Array
from std.memory import unsafe_memcpy
from std.sys.info import has_accelerator, size_of
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 65536
"""Elements that are worth a thread."""
comptime PAIR = 16
"""Elements that are doubled at a time."""
comptime COPIED = 32
"""Bytes that are copied at a time."""
comptime BLOCK = 2048
"""Bytes of neighbours up to which they are part of a longer row."""


@fieldwise_init
struct _Dimension(TrivialRegisterPassable):
    """A dimension of output and input."""

    var axis: Axis[DType.float32]
    var output_stride: Int64
    var input_stride: Int64


struct _Mapping(DevicePassable, TrivialRegisterPassable):
    """The fastest dimensions of a mapped copy, for GPU threads."""

    comptime device_type: AnyType = Self

    # Tuples of numbers: a tuple of structs does not reach the device.
    var ndim: Int64
    var numbers: StaticTuple[Int64, 6 * MAX_GPU_DIMENSIONS]
    """Kind, input's size, output's size, shift, output's stride and input's stride of each dimension, from the fastest to
    the slowest."""
    var scales: StaticTuple[Float32, MAX_GPU_DIMENSIONS]

    def __init__(out self, dimensions: List[_Dimension]):
        """Takes dimensions, given from the slowest to the fastest."""
        var ndim = len(dimensions)
        self.ndim = Int64(ndim)
        self.numbers = StaticTuple[Int64, 6 * MAX_GPU_DIMENSIONS](fill=0)
        self.scales = StaticTuple[Float32, MAX_GPU_DIMENSIONS](fill=1)
        for i in range(ndim):
            var dimension = dimensions[ndim - 1 - i]
            self.numbers[6 * i] = dimension.axis.kind
            self.numbers[6 * i + 1] = dimension.axis.inputs
            self.numbers[6 * i + 2] = dimension.axis.outputs
            self.numbers[6 * i + 3] = dimension.axis.shift
            self.numbers[6 * i + 4] = dimension.output_stride
            self.numbers[6 * i + 5] = dimension.input_stride
            self.scales[i] = dimension.axis.scale

    @inline(.always)
    def dimension[i: Int](self) -> _Dimension:
        """The i-th fastest dimension."""
        var axis = Axis[DType.float32](
            Int(self.numbers[6 * i]),
            Int(self.numbers[6 * i + 1]),
            Int(self.numbers[6 * i + 2]),
        )
        axis.shift = self.numbers[6 * i + 3]
        axis.scale = self.scales[i]
        return _Dimension(
            axis, self.numbers[6 * i + 4], self.numbers[6 * i + 5]
        )

    @staticmethod
    def get_type_name() -> String:
        return "_Mapping"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


def _copy_block[
    storage: DType
](
    output: Data[storage],
    input: Data[storage],
    mapping: _Mapping,
    value: Scalar[storage],
    count: Int64,
):
    """One output per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var rest = i
        var to = 0
        var from_ = 0
        var inside = True
        # Unrolled, with fixed positions: an index that varies would move the tuple to local memory.
        comptime for d in range(MAX_GPU_DIMENSIONS):
            if d < Int(mapping.ndim):
                var dimension = mapping.dimension[d]()
                var quotient, o = split(rest, Int(dimension.axis.outputs))
                rest = quotient
                var source = dimension.axis.source(o)
                inside = inside and source >= 0
                to += o * Int(dimension.output_stride)
                from_ += source * Int(dimension.input_stride)
        output.unsafe_store(to, input.unsafe_load(from_) if inside else value)
        i += Int(grid_dim.x) * Int(block_dim.x)


def mapped_copy[dtype: DType](call: KernelCall) raises:
    """Copies elements to where maps along the dimensions say.

    Tensors: output, input, of the same number of dimensions and any strides. Scalars: see `AxisReader`; then, for padding
    with a constant, the Number.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        NotImplementedError: On GPUs, more than 8 dimensions that do not merge.
    """
    comptime storage = storage_type[dtype]()
    var output = call.tensor(0)
    var input = call.tensor(1)
    if output.numel == 0:
        return
    var axes = AxisReader(call)
    var value = Scalar[storage](0)
    if axes.kind == CONSTANT:
        value = to_storage(call.number[dtype](axes.reader.position))
    var ndim = Int(output.ndim)
    # From the slowest dimension of the output to the fastest; those that stay merge.
    var dimensions = List[_Dimension]()
    var order = List[Int]()
    for d in range(ndim):
        var at = len(order)
        while (
            at > 0
            and output.stride(order[at - 1]) < output.stride(d)
            and output.size(d) > 1
        ):
            at -= 1
        order.insert(at, d)
    for d in order:
        var axis = axes.axis[DType.float32](
            call, d, ndim, input.size(d), output.size(d)
        )
        var next = _Dimension(
            axis, Int64(output.stride(d)), Int64(input.stride(d))
        )
        if axis.outputs == 1 and axis.kind == IDENTITY:
            continue
        if len(dimensions) > 0:
            var last = dimensions[len(dimensions) - 1]
            if (
                axis.kind == IDENTITY
                and last.axis.kind == IDENTITY
                and last.output_stride == next.output_stride * axis.outputs
                and last.input_stride == next.input_stride * axis.outputs
            ):
                next.axis = Axis[DType.float32](
                    IDENTITY,
                    Int(axis.inputs * last.axis.inputs),
                    Int(axis.outputs * last.axis.outputs),
                )
                dimensions[len(dimensions) - 1] = next
                continue
        dimensions.append(next)
    if len(dimensions) == 0:
        dimensions.append(_Dimension(Axis[DType.float32](IDENTITY, 1, 1), 1, 1))
    var target = output.pointer[storage]()
    var source = input.pointer[storage]()
    comptime if has_accelerator():
        if len(dimensions) > MAX_GPU_DIMENSIONS:
            raise Error(
                "NotImplementedError: a padded, flipped or rolled copy over ",
                len(dimensions),
                " dimensions; make the tensor contiguous or merge some",
            )
        gpu_context(call).enqueue_function[_copy_block[storage]](
            target,
            source,
            _Mapping(dimensions),
            value,
            output.numel,
            grid_dim=min(
                ceil_div(Int(output.numel), GPU_BLOCK), GPU_MAX_BLOCKS
            ),
            block_dim=GPU_BLOCK,
        )
    else:
        _copy_on_cpu(call, target, source, dimensions, value)


@fieldwise_init
struct _Row[storage: DType](TrivialRegisterPassable):
    """The fastest dimension that maps, of blocks of neighbours that stay together. By value: what stores might change would
    be loaded again for every row.
    """

    var n: Int
    """Blocks."""
    var block: Int
    """Elements of a block."""
    var output_stride: Int
    var inputs: Words
    """Where the blocks' inputs lie; -1 where there is none."""
    var low: Int
    var high: Int
    """Blocks from `low` to `high` are neighbours as their inputs are, if `unit`."""
    var first: Int
    """The input of block `low`, then."""
    var dense: Bool
    """Blocks are neighbours in the output."""
    var unit: Bool
    """In the input too."""
    var rolls: Bool
    """The blocks before `low` are neighbours too, if `unit`, and end where the input does."""
    var doubled: Bool
    """Every element is there twice."""
    var value: Scalar[Self.storage]
    """What is written where there is no input."""

    @inline(.always)
    def fill(self, y: Data[Self.storage]):
        """Writes a row without inputs."""
        if self.dense:
            _fill(y, self.n * self.block, self.value)
            return
        for o in range(self.n):
            _fill(
                y.unsafe_offset(o * self.output_stride), self.block, self.value
            )

    @inline(.always)
    def copy_some(
        self, y: Data[Self.storage], x: Data[Self.storage], start: Int, end: Int
    ):
        """Writes blocks one by one."""
        for o in range(start, end):
            var offset = Int(self.inputs.unsafe_load(o))
            var to = y.unsafe_offset(o * self.output_stride)
            if self.block == 1:
                to.unsafe_store(
                    0, x.unsafe_load(offset) if offset >= 0 else self.value
                )
            elif offset >= 0:
                _copy(to, x.unsafe_offset(offset), self.block)
            else:
                _fill(to, self.block, self.value)

    @inline(.always)
    def copy(self, y: Data[Self.storage], x: Data[Self.storage]):
        """Writes a row."""
        if self.doubled:
            _double(y, x, self.n // 2)
            return
        if not self.unit:
            self.copy_some(y, x, 0, self.n)
            return
        if self.rolls:
            var before = self.low * self.block
            _copy(y, x.unsafe_offset(self.n * self.block - before), before)
        else:
            self.copy_some(y, x, 0, self.low)
        if self.high > self.low:
            _copy(
                y.unsafe_offset(self.low * self.block),
                x.unsafe_offset(self.first),
                (self.high - self.low) * self.block,
            )
        self.copy_some(y, x, self.high, self.n)


def _copy_on_cpu[
    storage: DType
](
    call: KernelCall,
    target: Data[storage],
    source: Data[storage],
    mut dimensions: List[_Dimension],
    value: Scalar[storage],
):
    """Copies row by row; the coordinates of the slower dimensions count like an odometer.
    """
    var block = 1
    var fastest = dimensions[len(dimensions) - 1]
    if (
        len(dimensions) > 1
        and fastest.axis.kind == IDENTITY
        and fastest.output_stride == 1
        and fastest.input_stride == 1
        and Int(fastest.axis.outputs) <= BLOCK // size_of[storage]()
    ):
        block = Int(fastest.axis.outputs)
        _ = dimensions.pop()
    if len(dimensions) == 1:
        # There is always a dimension whose outputs are rows.
        dimensions.insert(
            0, _Dimension(Axis[DType.float32](IDENTITY, 1, 1), 0, 0)
        )
    var outer = len(dimensions) - 2
    var mapped = dimensions[outer + 1]
    # Where the inputs of the outputs of each dimension that maps lie, -1 where there is none.
    var table = List[Int64]()
    var tables = Array[Int, MAX_DIMENSIONS + 1](fill=0)
    var rows = 1
    for d in range(outer + 2):
        tables[d] = len(table)
        var dimension = dimensions[d]
        if d <= outer:
            rows *= Int(dimension.axis.outputs)
            if dimension.axis.kind == IDENTITY:
                tables[d] = -1
                continue
        for o in range(Int(dimension.axis.outputs)):
            var i = dimension.axis.source(o)
            table.append(Int64(i) * dimension.input_stride if i >= 0 else -1)
    var offsets = Words(unsafe_from_address=Int(table.unsafe_ptr()))
    var n = Int(mapped.axis.outputs)
    var low, high = _run(mapped, n)
    var dense = mapped.output_stride == Int64(block)
    var unit = dense and mapped.input_stride == Int64(block)
    var plan = _Row[storage](
        n,
        block,
        Int(mapped.output_stride),
        offsets.unsafe_offset(tables[outer + 1]),
        low,
        high,
        (low - Int(mapped.axis.shift)) * block,
        dense,
        unit,
        mapped.axis.kind == ROLL,
        unit
        and block == 1
        and mapped.axis.kind == NEAREST
        and mapped.axis.outputs == 2 * mapped.axis.inputs,
        value,
    )
    # The dimension whose outputs are rows.
    var last = dimensions[outer]
    var last_table = tables[outer]

    @inline(.always)
    def some_rows_of(y: Data[storage], base: Int, start: Int, end: Int) {imm}:
        var row = plan
        var x = source
        var to_stride = Int(last.output_stride)
        var from_stride = Int(last.input_stride)
        var maps = last_table >= 0
        var inputs = offsets.unsafe_offset(max(last_table, 0))
        var before = -1
        for o in range(start, end):
            var to = y.unsafe_offset(o * to_stride)
            var at = o * from_stride
            if maps:
                at = Int(inputs.unsafe_load(o))
            if at < 0 or base < 0:
                row.fill(to)
            elif at == before and row.dense:
                # As the row before, which is in the cache.
                _copy(to, to.unsafe_offset(-to_stride), row.n * row.block)
            else:
                row.copy(to, x.unsafe_offset(base + at))
            before = at

    def some_rows(start: Int, end: Int) {imm}:
        var count = Int(last.axis.outputs)
        var coordinates = Array[Int, MAX_DIMENSIONS](fill=0)
        var rest, position = split(start, count)
        for d in range(outer - 1, -1, -1):
            var quotient, coordinate = split(
                rest, Int(dimensions.unsafe_get(d).axis.outputs)
            )
            rest = quotient
            coordinates.unsafe_get(d) = coordinate
        var left = end - start
        while left > 0:
            var to = 0
            var base = 0
            for d in range(outer):
                var o = coordinates.unsafe_get(d)
                var i = o * Int(dimensions.unsafe_get(d).input_stride)
                if tables.unsafe_get(d) >= 0:
                    i = Int(offsets.unsafe_load(tables.unsafe_get(d) + o))
                to += o * Int(dimensions.unsafe_get(d).output_stride)
                base = base + i if min(i, base) >= 0 else -1
            var some = min(left, count - position)
            some_rows_of(
                target.unsafe_offset(to), base, position, position + some
            )
            left -= some
            position = 0
            for d in range(outer - 1, -1, -1):
                coordinates.unsafe_get(d) += 1
                if coordinates.unsafe_get(d) < Int(
                    dimensions.unsafe_get(d).axis.outputs
                ):
                    break
                coordinates.unsafe_get(d) = 0

    parallel_ranges(call, rows, GRAIN // max(n * block, 1), some_rows)
    _ = table^


def _run(row: _Dimension, n: Int) -> Tuple[Int, Int]:
    """The outputs [low, high) of a row that are neighbours as their inputs are.
    """
    var shift = Int(row.axis.shift)
    if row.axis.kind <= REPLICATE:
        var low = min(max(shift, 0), n)
        return (low, max(min(shift + Int(row.axis.inputs), n), low))
    if row.axis.kind == ROLL:
        return (shift, n)
    return (0, 0)


@inline(.always)
def _copy[storage: DType](target: Data[storage], source: Data[storage], n: Int):
    """Copies neighbours; few of them without a call."""
    comptime width = COPIED // size_of[storage]()
    if n > 16 * width:
        unsafe_memcpy(dest=target, src=source, count=n)
    elif n >= width:
        var i = 0
        while i + width <= n:
            target.unsafe_store(i, source.unsafe_load[width=width](i))
            i += width
        # The last vector overlaps the one before.
        i = n - width
        target.unsafe_store(i, source.unsafe_load[width=width](i))
    elif n >= width // 4:
        comptime part = max(width // 4, 1)
        var i = 0
        while i + part <= n:
            target.unsafe_store(i, source.unsafe_load[width=part](i))
            i += part
        i = n - part
        target.unsafe_store(i, source.unsafe_load[width=part](i))
    else:
        for i in range(n):
            target.unsafe_store(i, source.unsafe_load(i))


@inline(.always)
def _fill[
    storage: DType
](target: Data[storage], n: Int, value: Scalar[storage]):
    """Writes a number to neighbours."""
    comptime width = COPIED // size_of[storage]()
    var i = 0
    while i + width <= n:
        target.unsafe_store(i, SIMD[storage, width](value))
        i += width
    while i < n:
        target.unsafe_store(i, value)
        i += 1


@inline(.always)
def _double[
    storage: DType
](target: Data[storage], source: Data[storage], n: Int):
    """Writes every element twice."""
    var i = 0
    while i + PAIR <= n:
        var values = source.unsafe_load[width=PAIR](i)
        target.unsafe_store(2 * i, values.interleave(values))
        i += PAIR
    while i < n:
        target.unsafe_store(2 * i, source.unsafe_load(i))
        target.unsafe_store(2 * i + 1, source.unsafe_load(i))
        i += 1
