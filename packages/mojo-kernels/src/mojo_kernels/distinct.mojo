"""Distinct elements of a sequence in which equal ones are neighbours."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.compaction import Compaction, compact
from mojo_kernels.pointwise.function import storage_type


@fieldwise_init
struct _Runs[dtype: DType](Compaction):
    """The first element of each run of equals stands for the run."""

    comptime storage = storage_type[Self.dtype]()
    var distinct: Data[Self.storage]
    var counts: Data[DType.int64]
    var inverse: Data[DType.int64]
    var number: Data[DType.int64]
    var values: Data[Self.storage]
    var order: Data[DType.int64]
    var n: Int64
    var has_counts: Int32
    var has_inverse: Int32
    var has_order: Int32

    @inline(.always)
    def is_set(self, index: Int) -> Bool:
        return index == 0 or self.values.unsafe_load(
            index
        ) != self.values.unsafe_load(index - 1)

    @inline(.always)
    def emit(self, index: Int, rank: Int):
        self.distinct.unsafe_store(rank, self.values.unsafe_load(index))
        var end = index
        while True:
            if self.has_inverse != 0:
                var place = end
                if self.has_order != 0:
                    place = Int(self.order.unsafe_load(end))
                self.inverse.unsafe_store(place, Int64(rank))
            end += 1
            if end == Int(self.n) or self.is_set(end):
                break
        if self.has_counts != 0:
            self.counts.unsafe_store(rank, Int64(end - index))
        if end == Int(self.n):
            self.number.unsafe_store(0, Int64(rank + 1))


def distinct[dtype: DType](call: KernelCall) raises:
    """The first element of each run of equal neighbours, the runs' lengths, and the number of each element's run. NaN equals
    nothing. On GPUs a thread handles a run.

    Tensors, all contiguous: the runs' elements and, optional, their lengths (int64), both with room for as many as there are
    elements; optional, for each element the number of its run (int64); one element for the number of runs (int64); the
    elements; optional, where each element's number goes (int64), else it goes where the element stands.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
    """
    comptime storage = storage_type[dtype]()
    var values = call.tensor(4)

    @inline(.always)
    def words(i: Int) {imm} -> Data[DType.int64]:
        return call.tensor(i).pointer[DType.int64]()

    compact(
        call,
        _Runs[dtype](
            call.tensor(0).pointer[storage](),
            words(1),
            words(2),
            words(3),
            values.pointer[storage](),
            words(5),
            values.numel,
            Int32(not call.tensor(1).is_absent()),
            Int32(not call.tensor(2).is_absent()),
            Int32(not call.tensor(5).is_absent()),
        ),
        Int(values.numel),
    )
