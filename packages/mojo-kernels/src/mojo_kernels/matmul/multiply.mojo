"""Chooses how a matrix product is computed."""

from std.sys.info import has_accelerator

from mojo_kernels.abi import KernelCall
from mojo_kernels.matmul.amx import HAS_AMX, request_amx
from mojo_kernels.matmul.direct import multiply_direct
from mojo_kernels.matmul.gpu import multiply_batch_gpu
from mojo_kernels.matmul.matrix import Batch, Matrix, Update, ceil_div
from mojo_kernels.matmul.packed import (
    PARALLEL_WORK,
    multiply_packed,
    run,
)
from mojo_kernels.matmul.tile import TileFormat

comptime FEW_ROWS = 8
"""Rows up to which reading b directly beats packing it."""
comptime TINY_WORK = 16 * 16 * 16
"""Multiplications up to which packing costs more than it saves."""


def multiply[
    dtype: DType
](
    call: KernelCall,
    m: Int,
    n: Int,
    k: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
    parallel: Bool = True,
) raises:
    """Computes `update(a @ b)` on the CPU for matrices with any strides.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        m: Rows of a and of the result.
        n: Columns of b and of the result.
        k: Columns of a and rows of b.
        a: The left operand.
        b: The right operand.
        update: Where the product goes.
        parallel: Whether to use the threads where the product is large enough.

    Raises:
        If there is no memory for the workspace.
    """
    if m == 0 or n == 0:
        return
    var flip = False
    if n <= FEW_ROWS and m > n:
        flip = True
    elif update.out.column_stride != 1 and m > FEW_ROWS:
        flip = update.out.row_stride == 1
    if flip:
        _multiply[dtype](
            call,
            n,
            m,
            k,
            b.transposed(),
            a.transposed(),
            update.transposed(),
            parallel,
        )
    else:
        _multiply[dtype](call, m, n, k, a, b, update, parallel)


@inline(.never)
def _multiply[
    dtype: DType
](
    call: KernelCall,
    m: Int,
    n: Int,
    k: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
    parallel: Bool,
) raises:
    var work = m * n * k
    if m <= FEW_ROWS or work <= TINY_WORK:
        var dots = b.row_stride == 1 and a.column_stride == 1
        if b.column_stride == 1 or dots:
            # Few rows read b from memory, which is slower than computing.
            multiply_direct[dtype](
                call,
                m,
                n,
                k,
                a,
                b,
                update,
                parallel and work >= PARALLEL_WORK // 4,
            )
            return
    comptime if HAS_AMX and dtype == DType.bfloat16:
        if request_amx():
            multiply_packed[dtype, True](
                call, m, n, k, a, b, update, parallel and work >= PARALLEL_WORK
            )
            return
    multiply_packed[dtype](
        call, m, n, k, a, b, update, parallel and work >= PARALLEL_WORK
    )


def multiply_batch[
    dtype: DType
](call: KernelCall, batch: Batch[dtype, TileFormat[dtype].ACCUMULATE]) raises:
    """Computes a batch of products.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads or the stream.
        batch: The products.

    Raises:
        If there is no memory for a workspace.
    """
    comptime if has_accelerator():
        multiply_batch_gpu[dtype](call, batch)
    else:
        _multiply_batch_cpu[dtype](call, batch)


def _multiply_batch_cpu[
    dtype: DType
](call: KernelCall, batch: Batch[dtype, TileFormat[dtype].ACCUMULATE]) raises:
    var m = batch.m
    var n = batch.n
    var k = batch.k

    @inline(.always)
    def single(index: Int, parallel: Bool) raises {imm}:
        var product = batch.product(index)
        multiply[dtype](
            call, m, n, k, product.a, product.b, product.update, parallel
        )

    var threads = Int(call.threads)
    if batch.count < threads and m * n * k >= PARALLEL_WORK:
        for index in range(batch.count):
            single(index, True)
        return

    var work = batch.count * m * n * k
    var parallel = work >= PARALLEL_WORK
    var tasks = min(batch.count, 4 * threads) if parallel else 1
    var group = ceil_div(batch.count, max(tasks, 1))
    var failed = False

    def products(task: Int) {mut failed, imm}:
        try:
            for index in range(
                task * group, min((task + 1) * group, batch.count)
            ):
                single(index, False)
        except:
            failed = True

    run(call, parallel, products, tasks)
    if failed:
        raise Error("out of memory in a batch of matrix products")
