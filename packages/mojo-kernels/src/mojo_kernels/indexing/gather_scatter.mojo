"""`gather` and the scatter family: one index per element, or one per slice, along one dimension."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.bounds import Bounds, BoundsReport
from mojo_kernels.indexing.copy import copy_tensor
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace, ceil_div, parallel_ranges
from mojo_kernels.math import compute_type
from mojo_kernels.pointwise.function import storage_type
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import row_each
from std.atomic import Atomic
from std.memory import unsafe_memcpy
from std.sys.info import has_accelerator, is_gpu
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Gather[dtype: DType, index: DType](ElementAction):
    """Copies one element; operands: output, index, input without the indexed dimension.
    """

    comptime operands = 3
    var output: Data[storage_type[Self.dtype]()]
    var indices: Data[Self.index]
    var input: Data[storage_type[Self.dtype]()]
    var stride: Int64
    var bounds: Bounds

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 3]):
        var i = Int(self.indices.unsafe_load(offsets[1]))
        if self.bounds.contains(i):
            self.output.unsafe_store(
                offsets[0],
                self.input.unsafe_load(offsets[2] + i * Int(self.stride)),
            )


def gather[
    dtype: DType, index: DType, indices: StaticString = "elements"
](call: KernelCall) raises:
    """Takes elements along a dimension: out[i][j][k] = input[i][index[i][j][k]][k] for dimension 1.

    Tensors: output, input, index; apart from the dimension the output is at most as large as the input. Scalars: the
    dimension.

    Parameters:
        dtype: The element type.
        index: The index type.
        indices: "elements": the index has the output's sizes; "slices": it is a vector, or one number, along the dimension.

    Args:
        call: The call.

    Raises:
        RuntimeError: An index is out of range, on CPUs; with slices an IndexError.
    """
    comptime storage = storage_type[dtype]()
    var output = call.tensor(0)
    var input = call.tensor(1)
    var ndim = Int(output.ndim)
    var dimension = wrap_dimension(call.int_scalar(0), ndim)
    var size = input.size(dimension) if input.ndim > 0 else 1
    var report = BoundsReport()
    var slices = SliceIndex[index](call.tensor(2), report.bounds(size))
    comptime if indices == "slices" and not has_accelerator():
        if _gather_runs[dtype](call, output, input, slices, dimension):
            if report.violated():
                raise Error("IndexError: index out of range in self")
            return
    var space = IndexSpace[3]()
    for d in range(ndim):
        space.append(
            output.size(d),
            StaticTuple[Int, 3](
                output.stride(d),
                _index_stride[indices](call.tensor(2), d, dimension),
                0 if d == dimension else input.stride(d),
            ),
        )
    each_element(
        call,
        _Gather[dtype, index](
            output.pointer[storage](),
            call.tensor(2).pointer[index](),
            input.pointer[storage](),
            Int64(input.stride(dimension) if input.ndim > 0 else 0),
            report.bounds(size),
        ),
        space,
    )
    comptime if indices == "slices":
        if report.violated():
            raise Error("IndexError: index out of range in self")
    else:
        report.raise_for_dimension("", dimension, size)


@inline(.always)
def _index_stride[
    indices: StaticString
](index: Tensor, dimension: Int, indexed: Int) -> Int:
    """The stride of the index along a dimension of the tensor that it belongs to.
    """
    comptime if indices == "elements":
        return index.stride(dimension)
    else:
        return index.stride(0) if dimension == indexed and index.ndim > 0 else 0


@fieldwise_init
struct SliceIndex[index: DType](TrivialRegisterPassable):
    """The index of slices: a vector or one number.

    Parameters:
        index: The index type.
    """

    var tensor: Tensor
    """The index."""
    var bounds: Bounds
    """Its range."""

    @inline(.always)
    def load(self, j: Int) -> Int:
        """One index.

        Args:
            j: The slice's number.

        Returns:
            The index, or -1 where it is out of range.
        """
        var i = Int(
            self.tensor.pointer[Self.index]().unsafe_load(
                j * (self.tensor.stride(0) if self.tensor.ndim > 0 else 0)
            )
        )
        return i if self.bounds.contains(i) else -1


def _gather_runs[
    dtype: DType, index: DType
](
    call: KernelCall,
    output: Tensor,
    input: Tensor,
    slices: SliceIndex[index],
    dimension: Int,
) -> Bool:
    """Copies whole slices where they are contiguous; returns False where they are not.
    """
    comptime storage = storage_type[dtype]()
    var inner = IndexSpace[2]()
    var outer = IndexSpace[2]()
    var ndim = Int(output.ndim)
    for d in range(ndim):
        var strides = StaticTuple[Int, 2](output.stride(d), input.stride(d))
        if d < dimension:
            outer.append(output.size(d), strides)
        elif d > dimension:
            inner.append(output.size(d), strides)
    if inner.ndim != 1 or inner.stride(0, 0) != 1 or inner.stride(0, 1) != 1:
        return False
    var run = inner.numel
    var count = output.size(dimension)

    def some_slices(start: Int, end: Int) {imm}:
        for unit in range(start, end):
            var row, j = divmod(unit, count)
            var i = slices.load(j)
            if i >= 0:
                var offsets = outer.offsets(row)
                unsafe_memcpy(
                    dest=output.pointer[storage]().unsafe_offset(
                        offsets[0] + j * output.stride(dimension)
                    ),
                    src=input.pointer[storage]().unsafe_offset(
                        offsets[1] + i * input.stride(dimension)
                    ),
                    count=run,
                )

    parallel_ranges(
        call, outer.numel * count, 65536 // max(run, 1), some_slices
    )
    return True


@inline(.always)
def combine[
    op: StaticString, dtype: DType, w: SIMDLength = 1
](
    old: SIMD[storage_type[dtype](), w], new: SIMD[storage_type[dtype](), w]
) -> SIMD[storage_type[dtype](), w]:
    """What scattered values make of the values that are there.

    Parameters:
        op: "add", "multiply", "amax" or "amin".
        dtype: The element type.
        w: The vector width.

    Args:
        old: The values that are there.
        new: The scattered values.

    Returns:
        The values to store.
    """
    comptime if dtype == DType.bool:
        # As on bool tensors elsewhere: sums and maxima are "or", products and minima "and".
        comptime if op == "add" or op == "amax":
            return old | new
        else:
            return old & new
    else:
        comptime compute = compute_type[storage_type[dtype]()]()
        var a = old.cast[compute]()
        var b = new.cast[compute]()
        comptime if op == "add":
            a += b
        elif op == "multiply":
            a *= b
        else:
            var better: SIMD[DType.bool, w]
            comptime if op == "amax":
                better = b.gt(a)
            else:
                better = b.lt(a)
            comptime if dtype.is_floating_point():
                better = (better | isnan(b)) & ~isnan(a)
            a = better.select(b, a)
        return a.cast[storage_type[dtype]()]()


@inline(.always)
def has_atomic_add[dtype: DType]() -> Bool:
    """Whether GPUs add elements of a type atomically.

    Parameters:
        dtype: The element type.

    Returns:
        True for float32, float64, int32 and int64.
    """
    return (
        dtype == DType.float32
        or dtype == DType.float64
        or dtype == DType.int32
        or dtype == DType.int64
    )


@fieldwise_init
struct _Scatter[
    op: StaticString, dtype: DType, index: DType, source_kind: StaticString
](ElementAction):
    """Scatters `length` values along the dimension, one after the other: no two lines meet.

    Operands: the target without the dimension, the index, the source.
    """

    comptime operands = 3
    var target: Data[storage_type[Self.dtype]()]
    var indices: Data[Self.index]
    var source: Data[storage_type[Self.dtype]()]
    var number: Scalar[storage_type[Self.dtype]()]
    var length: Int64
    var stride: Int64
    var index_stride: Int64
    var source_stride: Int64
    var bounds: Bounds

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 3]):
        for j in range(Int(self.length)):
            var i = Int(
                self.indices.unsafe_load(
                    offsets[1] + j * Int(self.index_stride)
                )
            )
            if not self.bounds.contains(i):
                continue
            var value = self.number
            comptime if Self.source_kind != "number":
                value = self.source.unsafe_load(
                    offsets[2] + j * Int(self.source_stride)
                )
            comptime if Self.source_kind == "scaled":
                value *= self.number
            var place = self.target.unsafe_offset(
                offsets[0] + i * Int(self.stride)
            )
            comptime if Self.op == "set":
                place.unsafe_store(0, value)
            elif Self.op == "add" and is_gpu() and has_atomic_add[Self.dtype]():
                _ = Atomic.fetch_add(place, value)
            else:
                place.unsafe_store(
                    0,
                    combine[Self.op, Self.dtype](place.unsafe_load(0), value),
                )


def _scatter_runs[
    op: StaticString, dtype: DType, index: DType, scales: Bool
](
    call: KernelCall,
    target: Tensor,
    values: Tensor,
    slices: SliceIndex[index],
    dimension: Int,
    number: Scalar[storage_type[dtype]()],
) -> Bool:
    """Scatters whole slices where they are contiguous, each thread its columns of them in order; returns False where they
    are not.
    """
    comptime storage = storage_type[dtype]()
    var ndim = Int(target.ndim)
    if ndim == 0 or Int(values.ndim) != ndim:
        return False
    var inner = IndexSpace[2]()
    var outer = IndexSpace[2]()
    for d in range(ndim):
        var strides = StaticTuple[Int, 2](target.stride(d), values.stride(d))
        if d < dimension:
            outer.append(values.size(d), strides)
        elif d > dimension:
            inner.append(values.size(d), strides)
    if inner.ndim != 1 or inner.stride(0, 0) != 1 or inner.stride(0, 1) != 1:
        return False
    var columns = inner.numel
    var count = values.size(dimension)
    var pieces = max(
        min(Int(call.threads) // max(outer.numel, 1), columns // 64), 1
    )
    var width = ceil_div(columns, pieces)

    def some_units(start: Int, end: Int) {imm}:
        for unit in range(start, end):
            var row, piece = divmod(unit, pieces)
            var offsets = outer.offsets(row)
            var first = piece * width
            for j in range(count):
                var i = slices.load(j)
                if i < 0:
                    continue
                var place = target.pointer[storage]().unsafe_offset(
                    offsets[0] + i * target.stride(dimension) + first
                )
                var source = values.pointer[storage]().unsafe_offset(
                    offsets[1] + j * values.stride(dimension) + first
                )

                def join[w: Int](c: Int) {imm}:
                    var new = source.unsafe_load[width=w](c)
                    comptime if scales:
                        new *= number
                    comptime if op != "set":
                        new = combine[op, dtype, w](
                            place.unsafe_load[width=w](c), new
                        )
                    place.unsafe_store(c, new)

                row_each[0, storage](min(width, columns - first), join)

    parallel_ranges(
        call,
        outer.numel * pieces,
        16384 // max(count * width, 1),
        some_units,
    )
    return True


def scatter[
    op: StaticString,
    dtype: DType,
    index: DType,
    indices: StaticString = "elements",
    source: StaticString = "tensor",
](call: KernelCall) raises:
    """Writes values along a dimension: target[i][index[i][j][k]][k] = source[i][j][k] for dimension 1.

    Tensors: the target; the original values, which are copied first unless they are the target itself; the index; the source
    unless it is a number. Scalars: the dimension, then unless the source is a plain tensor a Number.

    Parameters:
        op: "set", or how values combine with the target's: "add", "multiply", "amax" or "amin".
        dtype: The element type.
        index: The index type.
        indices: "elements": one index per element; "slices": a vector of indices, or one, along the dimension.
        source: "tensor"; "number": the Number is written everywhere; "scaled": a tensor multiplied by the Number.

    Args:
        call: The call.

    Raises:
        RuntimeError: An index is out of range, on CPUs; with slices an IndexError.
    """
    comptime storage = storage_type[dtype]()
    var target = call.tensor(0)
    var index_tensor = call.tensor(2)
    # Without a source its sizes and strides are not read, or those of what stands in for it.
    var values = call.tensor(2 if source == "number" else 3)
    copy_tensor[dtype](call, target, call.tensor(1))
    if index_tensor.numel == 0:
        return  # an empty index may have any number of dimensions
    var ndim = Int(target.ndim)
    var dimension = wrap_dimension(call.int_scalar(0), ndim)
    # Where GPUs write or add atomically lines are cut into elements, else one thread walks a line in order.
    comptime whole_lines = not (
        has_accelerator()
        and (op == "set" or (op == "add" and has_atomic_add[dtype]()))
    )
    var length = 1
    var strides = StaticTuple[Int, 3](fill=0)
    var space = IndexSpace[3]()
    for d in range(ndim):
        var along = d == dimension
        var size = target.size(d)
        comptime if indices == "elements":
            size = index_tensor.size(d)
        else:
            if along:
                size = Int(index_tensor.numel)
        var value_stride = 0
        comptime if source != "number":
            value_stride = values.stride(d) if values.ndim > 0 else 0
        var along_strides = StaticTuple[Int, 3](
            target.stride(d),
            _index_stride[indices](index_tensor, d, dimension),
            value_stride,
        )
        if along:
            strides = along_strides
            if whole_lines:
                length = size
                continue
            along_strides[0] = 0
        space.append(size, along_strides)
    var size = target.size(dimension) if ndim > 0 else 1
    var number = Scalar[storage](0)
    comptime if source != "tensor":
        number = call.number[dtype](1).cast[storage]()
    var report = BoundsReport()
    comptime if indices == "slices" and source != "number":
        comptime if not has_accelerator():
            if _scatter_runs[op, dtype, index, source == "scaled"](
                call,
                target,
                values,
                SliceIndex[index](index_tensor, report.bounds(size)),
                dimension,
                number,
            ):
                if report.violated():
                    raise Error("IndexError: index out of range in self")
                return
    each_element(
        call,
        _Scatter[op, dtype, index, source](
            target.pointer[storage](),
            index_tensor.pointer[index](),
            values.pointer[storage](),
            number,
            Int64(length),
            Int64(strides[0]),
            Int64(strides[1]),
            Int64(strides[2]),
            report.bounds(size),
        ),
        space,
        16384 // max(length, 1),
    )
    comptime if indices == "slices":
        if report.violated():
            raise Error("IndexError: index out of range in self")
    else:
        report.raise_for_dimension("", dimension, size)
