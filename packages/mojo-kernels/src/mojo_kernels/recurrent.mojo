"""The pointwise part of LSTM and GRU cells, forward and backward; the matrix products are done before.

With a = the input's gates plus the hidden state's gates, biases included, as torch.nn.LSTM and torch.nn.GRU define them:

    LSTM (gates i, f, g, o):  c' = sigmoid(f) c + sigmoid(i) tanh(g),  h' = sigmoid(o) tanh(c')
    GRU (gates r, z, n):      h' = n' + z' (h - n'),  n' = tanh(input's n + r' (hidden's n)),  r' = sigmoid(r), z' = sigmoid(z)
"""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow, sigmoid, tanh
from mojo_kernels.reduction.rows import gpu_context
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, simd_width_of

comptime GRAIN = 4096
"""Units that are worth a thread."""
comptime GPU_BLOCK = 256
"""Threads of a block."""
comptime GPU_MAX_BLOCKS = 1 << 16
"""Blocks of a launch; threads loop over what is left."""


struct _Matrix[dtype: DType](TrivialRegisterPassable):
    """Rows of a tensor [batch, n] or of a vector [n] that all rows share; the innermost stride is 1.
    """

    var data: Data[Self.dtype]
    var is_absent: Int64
    var row_stride: Int64

    def __init__(out self, tensor: Tensor) raises:
        """Views a tensor; an absent one reads as zero."""
        self.data = tensor.pointer[Self.dtype]()
        self.is_absent = Int64(tensor.is_absent())
        self.row_stride = 0
        if tensor.is_absent():
            return
        if tensor.size(-1) > 1 and tensor.stride(-1) != 1:
            raise Error("cells need tensors whose innermost stride is 1")
        if tensor.ndim == 2:
            self.row_stride = Int64(tensor.stride(0))

    @inline(.always)
    def load[
        w: Int
    ](self, row: Int, column: Int) -> SIMD[compute_type[Self.dtype](), w]:
        if self.is_absent != 0:
            return 0
        return self.data.unsafe_load[width=w](
            row * Int(self.row_stride) + column
        ).cast[compute_type[Self.dtype]()]()

    @inline(.always)
    def store[
        w: Int
    ](self, row: Int, column: Int, value: SIMD[compute_type[Self.dtype](), w]):
        self.data.unsafe_store(
            row * Int(self.row_stride) + column, narrow[Self.dtype](value)
        )


trait _Cell(DevicePassable, TrivialRegisterPassable):
    """What happens to `w` neighbouring units of one row."""

    comptime compute: DType
    """The type that computes."""
    comptime device_type: AnyType = Self
    """The type on the device."""

    def apply[w: Int](self, row: Int, column: Int):
        """Handles units.

        Parameters:
            w: How many.

        Args:
            row: The position in the batch.
            column: The first unit.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Cell"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


@fieldwise_init
struct _Lstm[dtype: DType](_Cell):
    """Writes h', c' and the four activated gates, from which the gradient is computed.
    """

    comptime compute = compute_type[Self.dtype]()
    var hidden: Int64
    var hy: _Matrix[Self.dtype]
    var cy: _Matrix[Self.dtype]
    var workspace: _Matrix[Self.dtype]
    var input_gates: _Matrix[Self.dtype]
    var hidden_gates: _Matrix[Self.dtype]
    var cx: _Matrix[Self.dtype]
    var input_bias: _Matrix[Self.dtype]
    var hidden_bias: _Matrix[Self.dtype]

    @inline(.always)
    def gate[
        w: Int
    ](self, row: Int, column: Int, gate: Int) -> SIMD[Self.compute, w]:
        """The sum of a gate's parts."""
        var at = gate * Int(self.hidden) + column
        return (
            self.input_gates.load[w](row, at)
            + self.hidden_gates.load[w](row, at)
            + self.input_bias.load[w](0, at)
            + self.hidden_bias.load[w](0, at)
        )

    @inline(.always)
    def apply[w: Int](self, row: Int, column: Int):
        var n = Int(self.hidden)
        var i = sigmoid(self.gate[w](row, column, 0))
        var f = sigmoid(self.gate[w](row, column, 1))
        var g = tanh(self.gate[w](row, column, 2))
        var o = sigmoid(self.gate[w](row, column, 3))
        var c = f * self.cx.load[w](row, column) + i * g
        self.cy.store(row, column, c)
        self.hy.store(row, column, o * tanh(c))
        self.workspace.store(row, column, i)
        self.workspace.store(row, n + column, f)
        self.workspace.store(row, 2 * n + column, g)
        self.workspace.store(row, 3 * n + column, o)


@fieldwise_init
struct _LstmBackward[dtype: DType](_Cell):
    """Writes the gradients of the gates and of c."""

    comptime compute = compute_type[Self.dtype]()
    var hidden: Int64
    var grad_gates: _Matrix[Self.dtype]
    var grad_cx: _Matrix[Self.dtype]
    var grad_hy: _Matrix[Self.dtype]
    var grad_cy: _Matrix[Self.dtype]
    var cx: _Matrix[Self.dtype]
    var cy: _Matrix[Self.dtype]
    var workspace: _Matrix[Self.dtype]

    @inline(.always)
    def apply[w: Int](self, row: Int, column: Int):
        var n = Int(self.hidden)
        var i = self.workspace.load[w](row, column)
        var f = self.workspace.load[w](row, n + column)
        var g = self.workspace.load[w](row, 2 * n + column)
        var o = self.workspace.load[w](row, 3 * n + column)
        var t = tanh(self.cy.load[w](row, column))
        var grad_h = self.grad_hy.load[w](row, column)
        var grad_c = grad_h * o * (1 - t * t) + self.grad_cy.load[w](
            row, column
        )
        self.grad_gates.store(row, column, grad_c * g * i * (1 - i))
        self.grad_gates.store(
            row,
            n + column,
            grad_c * self.cx.load[w](row, column) * f * (1 - f),
        )
        self.grad_gates.store(row, 2 * n + column, grad_c * i * (1 - g * g))
        self.grad_gates.store(row, 3 * n + column, grad_h * t * o * (1 - o))
        self.grad_cx.store(row, column, grad_c * f)


@fieldwise_init
struct _Gru[dtype: DType](_Cell):
    """Writes h' and the workspace: r', z', n', h and the hidden state's part of n.
    """

    comptime compute = compute_type[Self.dtype]()
    var hidden: Int64
    var hy: _Matrix[Self.dtype]
    var workspace: _Matrix[Self.dtype]
    var input_gates: _Matrix[Self.dtype]
    var hidden_gates: _Matrix[Self.dtype]
    var hx: _Matrix[Self.dtype]
    var input_bias: _Matrix[Self.dtype]
    var hidden_bias: _Matrix[Self.dtype]

    @inline(.always)
    def apply[w: Int](self, row: Int, column: Int):
        var n = Int(self.hidden)
        var z_at = n + column
        var n_at = 2 * n + column
        var r = sigmoid(
            self.input_gates.load[w](row, column)
            + self.hidden_gates.load[w](row, column)
            + self.input_bias.load[w](0, column)
            + self.hidden_bias.load[w](0, column)
        )
        var z = sigmoid(
            self.input_gates.load[w](row, z_at)
            + self.hidden_gates.load[w](row, z_at)
            + self.input_bias.load[w](0, z_at)
            + self.hidden_bias.load[w](0, z_at)
        )
        var hidden_part = self.hidden_gates.load[w](
            row, n_at
        ) + self.hidden_bias.load[w](0, n_at)
        var new = tanh(
            self.input_gates.load[w](row, n_at)
            + self.input_bias.load[w](0, n_at)
            + r * hidden_part
        )
        var h = self.hx.load[w](row, column)
        self.hy.store(row, column, new + z * (h - new))
        self.workspace.store(row, column, r)
        self.workspace.store(row, z_at, z)
        self.workspace.store(row, n_at, new)
        self.workspace.store(row, 3 * n + column, h)
        self.workspace.store(row, 4 * n + column, hidden_part)


@fieldwise_init
struct _GruBackward[dtype: DType](_Cell):
    """Writes the gradients of both parts of the gates and of h."""

    comptime compute = compute_type[Self.dtype]()
    var hidden: Int64
    var grad_input_gates: _Matrix[Self.dtype]
    var grad_hidden_gates: _Matrix[Self.dtype]
    var grad_hx: _Matrix[Self.dtype]
    var grad_hy: _Matrix[Self.dtype]
    var workspace: _Matrix[Self.dtype]

    @inline(.always)
    def apply[w: Int](self, row: Int, column: Int):
        var n = Int(self.hidden)
        var r = self.workspace.load[w](row, column)
        var z = self.workspace.load[w](row, n + column)
        var new = self.workspace.load[w](row, 2 * n + column)
        var h = self.workspace.load[w](row, 3 * n + column)
        var hidden_part = self.workspace.load[w](row, 4 * n + column)
        var grad = self.grad_hy.load[w](row, column)
        var grad_new = grad * (1 - z) * (1 - new * new)
        var grad_r = grad_new * hidden_part * r * (1 - r)
        var grad_z = grad * (h - new) * z * (1 - z)
        self.grad_input_gates.store(row, column, grad_r)
        self.grad_input_gates.store(row, n + column, grad_z)
        self.grad_input_gates.store(row, 2 * n + column, grad_new)
        self.grad_hidden_gates.store(row, column, grad_r)
        self.grad_hidden_gates.store(row, n + column, grad_z)
        self.grad_hidden_gates.store(row, 2 * n + column, grad_new * r)
        self.grad_hx.store(row, column, grad * z)


def _kernel[C: _Cell](cell: C, units: Int64, hidden: Int64):
    """One unit per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(units):
        var row = i // Int(hidden)
        cell.apply[1](row, i - row * Int(hidden))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _each[C: _Cell](call: KernelCall, cell: C, state: Tensor) raises:
    """Runs a cell for every unit of a state [batch, hidden]."""
    var batch = state.size(0)
    var hidden = state.size(1)
    var units = batch * hidden
    if units == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_kernel[C]](
            cell,
            Int64(units),
            Int64(hidden),
            grid_dim=min(ceil_div(units, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        comptime w = simd_width_of[C.compute]()

        def some_rows(start: Int, end: Int) {imm}:
            for row in range(start, end):
                var column = 0
                while column + w <= hidden:
                    cell.apply[w](row, column)
                    column += w
                while column < hidden:
                    cell.apply[1](row, column)
                    column += 1

        parallel_ranges(call, batch, ceil_div(GRAIN, hidden), some_rows)


def lstm_cell[dtype: DType](call: KernelCall) raises:
    """One step of an LSTM.

    Tensors: hy, cy [batch, hidden], workspace [batch, 4 hidden]; input_gates, hidden_gates [batch, 4 hidden], cx [batch,
    hidden], input_bias and hidden_bias [4 hidden], both optional.

    Parameters:
        dtype: The element type.

    Args:
        call: The call; the innermost strides of all tensors are 1.

    Constraints:
        dtype is a floating type.
    """
    var state = call.tensor(0)
    _each(
        call,
        _Lstm[dtype](
            Int64(state.size(1)),
            _Matrix[dtype](state),
            _Matrix[dtype](call.tensor(1)),
            _Matrix[dtype](call.tensor(2)),
            _Matrix[dtype](call.tensor(3)),
            _Matrix[dtype](call.tensor(4)),
            _Matrix[dtype](call.tensor(5)),
            _Matrix[dtype](call.tensor(6)),
            _Matrix[dtype](call.tensor(7)),
        ),
        state,
    )


def lstm_cell_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of `lstm_cell`.

    Tensors: grad_gates [batch, 4 hidden], grad_cx [batch, hidden]; grad_hy and grad_cy [batch, hidden], both optional, cx,
    cy [batch, hidden], workspace [batch, 4 hidden].

    Parameters:
        dtype: The element type.

    Args:
        call: The call; the innermost strides of all tensors are 1.

    Constraints:
        dtype is a floating type.
    """
    var state = call.tensor(1)
    _each(
        call,
        _LstmBackward[dtype](
            Int64(state.size(1)),
            _Matrix[dtype](call.tensor(0)),
            _Matrix[dtype](state),
            _Matrix[dtype](call.tensor(2)),
            _Matrix[dtype](call.tensor(3)),
            _Matrix[dtype](call.tensor(4)),
            _Matrix[dtype](call.tensor(5)),
            _Matrix[dtype](call.tensor(6)),
        ),
        state,
    )


def gru_cell[dtype: DType](call: KernelCall) raises:
    """One step of a GRU.

    Tensors: hy [batch, hidden], workspace [batch, 5 hidden]; input_gates, hidden_gates [batch, 3 hidden], hx [batch,
    hidden], input_bias and hidden_bias [3 hidden], both optional.

    Parameters:
        dtype: The element type.

    Args:
        call: The call; the innermost strides of all tensors are 1.

    Constraints:
        dtype is a floating type.
    """
    var state = call.tensor(0)
    _each(
        call,
        _Gru[dtype](
            Int64(state.size(1)),
            _Matrix[dtype](state),
            _Matrix[dtype](call.tensor(1)),
            _Matrix[dtype](call.tensor(2)),
            _Matrix[dtype](call.tensor(3)),
            _Matrix[dtype](call.tensor(4)),
            _Matrix[dtype](call.tensor(5)),
            _Matrix[dtype](call.tensor(6)),
        ),
        state,
    )


def gru_cell_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of `gru_cell`.

    Tensors: grad_input_gates, grad_hidden_gates [batch, 3 hidden], grad_hx [batch, hidden]; grad_hy [batch, hidden],
    workspace [batch, 5 hidden].

    Parameters:
        dtype: The element type.

    Args:
        call: The call; the innermost strides of all tensors are 1.

    Constraints:
        dtype is a floating type.
    """
    var state = call.tensor(2)
    _each(
        call,
        _GruBackward[dtype](
            Int64(state.size(1)),
            _Matrix[dtype](call.tensor(0)),
            _Matrix[dtype](call.tensor(1)),
            _Matrix[dtype](state),
            _Matrix[dtype](call.tensor(3)),
            _Matrix[dtype](call.tensor(4)),
        ),
        state,
    )
