"""Sums, means and maxima of embeddings that belong together."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.bounds import Bounds, BoundsReport
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from std.sys.info import has_accelerator, simd_width_of
from std.utils.static_tuple import StaticTuple

comptime SUM = 0
"""The sum of a bag's rows, each times its weight if there are weights."""
comptime MEAN = 1
"""Their sum divided by their number."""
comptime MAX = 2
"""Their maximum in each column."""
comptime GRAIN = 16384
"""Elements that are worth a thread."""
comptime VECTORS = 4
"""Vectors of columns that CPUs add up together."""


@fieldwise_init
struct _Bags[dtype: DType, index: DType](ElementAction):
    """One column of a bag on GPUs; operands: bag, column."""

    comptime operands = 2
    comptime compute = compute_type[Self.dtype]()

    var output: Data[Self.dtype]
    var bag_of: Data[Self.index]
    var bag_size: Data[Self.index]
    var maxima: Data[Self.index]
    var table: Data[Self.dtype]
    var row_stride: Int64
    var column_stride: Int64
    var indices: Data[Self.index]
    var offsets: Data[Self.index]
    var weights: Data[Self.dtype]
    var has_weights: Int32
    var columns: Int64
    var bags: Int64
    var lookups: Int64
    var has_last: Int32
    var mode: Int32
    var padding: Int64
    var bounds: Bounds

    @inline(.always)
    def range_of(self, bag: Int) -> Tuple[Int, Int]:
        """The lookups of a bag."""
        var end = Int(self.lookups)
        if self.has_last != 0 or bag + 1 < Int(self.bags):
            end = Int(self.offsets.unsafe_load(bag + 1))
        return Int(self.offsets.unsafe_load(bag)), min(end, Int(self.lookups))

    @inline(.always)
    def weight(self, lookup: Int) -> Scalar[Self.compute]:
        """The weight of a lookup."""
        if self.has_weights == 0:
            return 1
        return self.weights.unsafe_load(lookup).cast[Self.compute]()

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 2]):
        comptime compute = Self.compute
        var bag = offsets[0]
        var column = offsets[1]
        var covered = self.range_of(bag)
        var result = Scalar[compute](0)
        var best = -1
        var count = 0
        for lookup in range(covered[0], covered[1]):
            var row = Int(self.indices.unsafe_load(lookup))
            if column == 0:
                self.bag_of.unsafe_store(lookup, Scalar[Self.index](bag))
            if row == Int(self.padding) or not self.bounds.contains(row):
                continue
            var value = self.table.unsafe_load(
                row * Int(self.row_stride) + column * Int(self.column_stride)
            ).cast[compute]()
            if Int(self.mode) == MAX:
                if best < 0 or value > result:
                    result = value
                    best = row
            else:
                result += value * self.weight(lookup)
            count += 1
        if Int(self.mode) == MEAN and count > 0:
            result /= Scalar[compute](Int64(count))
        self.finish(bag, column, result, best)
        if column == 0:
            self.bag_size.unsafe_store(bag, Scalar[Self.index](count))

    @inline(.always)
    def finish(
        self,
        bag: Int,
        column: Int,
        result: Scalar[compute_type[Self.dtype]()],
        best: Int,
    ):
        """Stores a column."""
        var place = bag * Int(self.columns) + column
        self.output.unsafe_store(place, narrow[Self.dtype](result))
        if Int(self.mode) == MAX:
            self.maxima.unsafe_store(place, Scalar[Self.index](best))

    def run(self, bag: Int):
        """Handles a bag on a CPU."""
        comptime compute = Self.compute
        comptime width = simd_width_of[compute]()
        if Int(self.mode) == MAX or self.column_stride != 1:
            for column in range(Int(self.columns)):
                self.apply(StaticTuple[Int, 2](bag, column))
            return
        var columns = Int(self.columns)
        var covered = self.range_of(bag)
        var count = 0
        for lookup in range(covered[0], covered[1]):
            var row = Int(self.indices.unsafe_load(lookup))
            self.bag_of.unsafe_store(lookup, Scalar[Self.index](bag))
            if row != Int(self.padding) and self.bounds.contains(row):
                count += 1
        self.bag_size.unsafe_store(bag, Scalar[Self.index](count))
        var scale = Scalar[compute](1)
        if Int(self.mode) == MEAN and count > 0:
            scale = 1 / Scalar[compute](Int64(count))
        var target = self.output.unsafe_offset(bag * columns)

        @inline(.always)
        def sum[w: Int](column: Int) {imm}:
            var total = SIMD[compute, w](0)
            for lookup in range(covered[0], covered[1]):
                var row = Int(self.indices.unsafe_load(lookup))
                if row == Int(self.padding) or not self.bounds.contains(row):
                    continue
                total += self.table.unsafe_load[width=w](
                    row * Int(self.row_stride) + column
                ).cast[compute]() * self.weight(lookup)
            target.unsafe_store(column, narrow[Self.dtype](total * scale))

        var column = 0
        while column + VECTORS * width <= columns:
            sum[VECTORS * width](column)
            column += VECTORS * width
        while column + width <= columns:
            sum[width](column)
            column += width
        if column < columns and columns >= width:
            # The last vector overlaps the one before.
            sum[width](columns - width)
            return
        while column < columns:
            sum[1](column)
            column += 1


def embedding_bag[dtype: DType, index: DType](call: KernelCall) raises:
    """Combines the rows of a table that each bag looks up.

    Tensors: output [bags, columns]; the bag of each lookup [lookups]; the number of lookups of each bag that count [bags]; the
    row of the maximum [bags, columns], -1 where there is none, absent for sums and means; the table [rows, columns] of any strides; the indices
    [lookups]; where each bag starts among them [bags], or one more; weights of the lookups [lookups], optional; all but the
    table contiguous. Scalars: whether the starts have a last one, the mode (0 sum, 1 mean, 2 max), the index that does not
    count, or -1.

    Parameters:
        dtype: The element type, floating.
        index: The type of indices, starts and numbers: int64 or int32.

    Args:
        call: The call.

    Raises:
        IndexError: An index is out of range, on CPUs.
        RuntimeError: The first bag does not start at 0 or one starts behind the lookups, on CPUs.
    """
    var table = call.tensor(4)
    var report = BoundsReport()
    var bags = call.tensor(0).size(0)
    var columns = table.size(1)
    var lookups = Int(call.tensor(5).numel)
    var action = _Bags[dtype, index](
        call.tensor(0).pointer[dtype](),
        call.tensor(1).pointer[index](),
        call.tensor(2).pointer[index](),
        call.tensor(3).pointer[index](),
        table.pointer[dtype](),
        Int64(table.stride(0)),
        Int64(table.stride(1)),
        call.tensor(5).pointer[index](),
        call.tensor(6).pointer[index](),
        call.tensor(7).pointer[dtype](),
        Int32(not call.tensor(7).is_absent()),
        Int64(columns),
        Int64(bags),
        Int64(lookups),
        Int32(call.int_scalar(0)),
        Int32(call.int_scalar(1)),
        Int64(call.int_scalar(2)),
        report.bounds(table.size(0)),
    )
    comptime if has_accelerator():
        var space = IndexSpace[2]()
        space.append(bags, StaticTuple[Int, 2](1, 0))
        space.append(columns, StaticTuple[Int, 2](0, 1))
        each_element(call, action, space)
    else:
        var starts = call.tensor(6).pointer[index]()
        var last = Int(call.tensor(6).numel) - 1
        if Int(starts.unsafe_load(0)) != 0:
            raise Error(
                (
                    "offsets[0] has to be 0, i.e., the first sequence in the"
                    " mini-batch has to start from position 0. However, got "
                ),
                starts.unsafe_load(0),
            )
        if Int(starts.unsafe_load(last)) > lookups:
            raise Error(
                "offsets[-1] can not be greater than input's length ",
                lookups,
                " but got offsets[-1] of ",
                starts.unsafe_load(last),
            )

        def some_bags(start: Int, end: Int) {imm}:
            for bag in range(start, end):
                action.run(bag)

        parallel_ranges(
            call,
            bags,
            GRAIN * bags // max((lookups + bags) * columns, 1),
            some_bags,
        )
        if report.violated():
            raise Error("IndexError: index out of range in embedding_bag")


@fieldwise_init
struct _WeightGradient[dtype: DType, index: DType](ElementAction):
    """The gradient of one lookup's weight; operands: lookup."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()

    var output: Data[Self.dtype]
    var dy: Data[Self.dtype]
    var bag_stride: Int64
    var dy_column_stride: Int64
    var table: Data[Self.dtype]
    var row_stride: Int64
    var column_stride: Int64
    var indices: Data[Self.index]
    var bags: Data[Self.index]
    var columns: Int64
    var padding: Int64
    var bounds: Bounds

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var lookup = offsets[0]
        var row = Int(self.indices.unsafe_load(lookup))
        var sum = Scalar[compute](0)
        if row != Int(self.padding) and self.bounds.contains(row):
            var bag = Int(self.bags.unsafe_load(lookup))
            for column in range(Int(self.columns)):
                sum += (
                    self.dy.unsafe_load(
                        bag * Int(self.bag_stride)
                        + column * Int(self.dy_column_stride)
                    ).cast[compute]()
                    * self.table.unsafe_load(
                        row * Int(self.row_stride)
                        + column * Int(self.column_stride)
                    ).cast[compute]()
                )
        self.output.unsafe_store(lookup, narrow[Self.dtype](sum))


def weights_backward[dtype: DType, index: DType](call: KernelCall) raises:
    """The gradients of the lookups' weights: products of the bags' gradients and the rows.

    Tensors: output [lookups]; the gradient [bags, columns] and the table [rows, columns], of any strides; indices [lookups];
    the bag of each [lookups]; the vectors contiguous. Scalars: the index that does not count, or -1.

    Parameters:
        dtype: The element type, floating.
        index: The type of indices and bags: int64 or int32.

    Args:
        call: The call.

    Raises:
        IndexError: An index is out of range, on CPUs.
    """
    var dy = call.tensor(1)
    var table = call.tensor(2)
    var report = BoundsReport()
    var space = IndexSpace[1]()
    space.append(Int(call.tensor(0).numel), StaticTuple[Int, 1](1))
    var columns = table.size(1)
    each_element(
        call,
        _WeightGradient[dtype, index](
            call.tensor(0).pointer[dtype](),
            dy.pointer[dtype](),
            Int64(dy.stride(0)),
            Int64(dy.stride(1)),
            table.pointer[dtype](),
            Int64(table.stride(0)),
            Int64(table.stride(1)),
            call.tensor(3).pointer[index](),
            call.tensor(4).pointer[index](),
            Int64(columns),
            Int64(call.int_scalar(0)),
            report.bounds(table.size(0)),
        ),
        space,
        max(GRAIN // max(columns, 1), 1),
    )
    if report.violated():
        raise Error("IndexError: index out of range in embedding_bag")
