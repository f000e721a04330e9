"""Indexing by several index tensors that are broadcast together."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.bounds import Bounds, BoundsReport
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.indexing.gather_scatter import combine, has_atomic_add
from mojo_kernels.layout import IndexSpace
from mojo_kernels.pointwise.function import storage_type
from std.atomic import Atomic
from std.memory import unsafe_memcpy
from std.sys.info import has_accelerator, is_gpu
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Index[op: StaticString, dtype: DType, count: Int](ElementAction):
    """Moves `run` neighbours; operands: the values, the indexed tensor without the indexed dimensions, the indices.
    """

    comptime operands = 2 + Self.count
    comptime storage = storage_type[Self.dtype]()

    var values: Data[Self.storage]
    var tensor: Data[Self.storage]
    var indices: StaticTuple[Data[DType.int64], Self.count]
    var strides: StaticTuple[Int64, Self.count]
    var bounds: StaticTuple[Bounds, Self.count]
    var run: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, Self.operands]):
        var place = offsets[1]
        comptime for k in range(Self.count):
            var i = Int(self.indices[k].unsafe_load(offsets[2 + k]))
            # Negative indices count from the end; a violation is reported as it was given.
            var wrapped = i + Int(self.bounds[k].size) if i < 0 else i
            if not self.bounds[k].contains(wrapped if wrapped >= 0 else i):
                comptime if not is_gpu():
                    self.bounds[k].report.unsafe_store(1, Int64(i))
                return
            place += wrapped * Int(self.strides[k])
        var target = self.tensor.unsafe_offset(place)
        var value = self.values.unsafe_offset(offsets[0])
        comptime if Self.op == "get":
            if self.run == 1:
                value.unsafe_store(0, target.unsafe_load(0))
            else:
                unsafe_memcpy(dest=value, src=target, count=Int(self.run))
        elif Self.op == "set":
            if self.run == 1:
                target.unsafe_store(0, value.unsafe_load(0))
            else:
                unsafe_memcpy(dest=target, src=value, count=Int(self.run))
        elif is_gpu() and has_atomic_add[Self.dtype]():
            _ = Atomic.fetch_add(target, value.unsafe_load(0))
        else:
            for j in range(Int(self.run)):
                target.unsafe_store(
                    j,
                    combine["add", Self.dtype](
                        target.unsafe_load(j), value.unsafe_load(j)
                    ),
                )


def index[op: StaticString, dtype: DType, count: Int](call: KernelCall) raises:
    """Reads or writes elements at positions that index tensors give.

    Tensors, all with the sizes of the result: the values (the output of "get", else what is written); the indexed tensor,
    with stride 0 along the dimensions that the indices span; `count` int64 index tensors. Scalars: for each index tensor the
    dimension that it indexes, that dimension's size and its stride.

    Parameters:
        op: "get", "set" (of equal positions any one wins) or "add" (all are added up).
        dtype: The element type.
        count: The number of index tensors.

    Args:
        call: The call.

    Raises:
        IndexError: An index is out of range, on CPUs.
    """
    comptime storage = storage_type[dtype]()
    var indices = StaticTuple[Data[DType.int64], count](
        fill=call.tensor(2).pointer[DType.int64]()
    )
    var strides = StaticTuple[Int64, count](fill=0)
    var report = BoundsReport()
    var bounds = StaticTuple[Bounds, count](fill=report.bounds(0))
    comptime for k in range(count):
        indices[k] = call.tensor(2 + k).pointer[DType.int64]()
        bounds[k] = report.bounds(call.int_scalar(3 * k + 1), k)
        strides[k] = Int64(call.int_scalar(3 * k + 2))
    var space = IndexSpace[2 + count]()
    for d in range(Int(call.tensor(0).ndim)):
        var dimension = StaticTuple[Int, 2 + count](fill=0)
        comptime for k in range(2 + count):
            dimension[k] = call.tensor(k).stride(d)
        space.append(call.tensor(0).size(d), dimension)
    var run = 1
    comptime if not has_accelerator():
        var last = space.ndim - 1
        var contiguous = (
            last >= 0
            and space.stride(last, 0) == 1
            and space.stride(last, 1) == 1
        )
        comptime for k in range(count):
            contiguous = contiguous and space.stride(last, 2 + k) == 0
        if contiguous:
            run = space.pop().size
    each_element(
        call,
        _Index[op, dtype, count](
            call.tensor(0).pointer[storage](),
            call.tensor(1).pointer[storage](),
            indices,
            strides,
            bounds,
            Int64(run),
        ),
        space,
        16384 // max(run, 1),
        op == "add" and not (has_accelerator() and has_atomic_add[dtype]()),
    )
    if report.violated():
        var k = Int(report.words[2])
        raise Error(
            "IndexError: index ",
            report.words[1],
            " is out of bounds for dimension ",
            call.int_scalar(3 * k),
            " with size ",
            call.int_scalar(3 * k + 1),
        )
