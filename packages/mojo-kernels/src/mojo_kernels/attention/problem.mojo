"""What an attention call computes: operands by head, mask, scale and dropout."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.matmul.matrix import Matrix, accumulator
from mojo_kernels.random.philox import uniform_float32

comptime MASK_NONE = 0
"""No mask."""
comptime MASK_BOOL = 1
"""A bool mask: False forbids a key."""
comptime MASK_SAME = 2
"""A mask of the operands' dtype that is added to the scores."""
comptime MASK_FLOAT = 3
"""A float32 mask that is added to the scores of half types."""


@fieldwise_init
struct Heads[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """A tensor [batch, heads, sequence, features] with any strides.

    Parameters:
        dtype: The element type.
    """

    comptime device_type: AnyType = Self
    """Kernels receive the struct as it is."""

    var data: Data[Self.dtype]
    """The first element."""
    var batch_stride: Int
    """Elements from one batch entry to the next."""
    var head_stride: Int
    """Elements from one head to the next."""
    var row_stride: Int
    """Elements from one position of the sequence to the next."""
    var column_stride: Int
    """Elements from one feature to the next."""

    @implicit
    def __init__(out self, tensor: Tensor):
        """Reads a tensor of up to four dimensions; missing ones and those of size 1 are broadcast.

        Args:
            tensor: The tensor.
        """
        self.data = tensor.pointer[Self.dtype]()
        self.batch_stride = _stride(tensor, 4)
        self.head_stride = _stride(tensor, 3)
        self.row_stride = _stride(tensor, 2)
        self.column_stride = _stride(tensor, 1)

    @staticmethod
    def get_type_name() -> String:
        """The name in messages.

        Returns:
            The struct's name.
        """
        return "Heads"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def head(self, batch: Int, head: Int) -> Matrix[Self.dtype]:
        """The matrix [sequence, features] of one head.

        Args:
            batch: The batch entry.
            head: The head.

        Returns:
            A view.
        """
        return Matrix[Self.dtype](
            self.data.unsafe_offset(
                batch * self.batch_stride + head * self.head_stride
            ),
            self.row_stride,
            self.column_stride,
        )

    @inline(.always)
    def at(
        self, batch: Int, head: Int, row: Int, column: Int
    ) -> Data[Self.dtype]:
        """The address of an element.

        Args:
            batch: The batch entry.
            head: The head.
            row: The position in the sequence.
            column: The feature.

        Returns:
            Where it lies.
        """
        return self.head(batch, head).at(row, column)


def _stride(tensor: Tensor, from_end: Int) -> Int:
    """The stride of a dimension counted from the end, 0 where it is missing or broadcast.
    """
    if from_end > Int(tensor.ndim) or tensor.size(-from_end) == 1:
        return 0
    return tensor.stride(-from_end)


@fieldwise_init
struct Problem[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """Sizes and options that forward and backward share.

    Parameters:
        dtype: The element type of query, key and value.
    """

    comptime ACCUMULATE = accumulator[Self.dtype]()
    """The type of scores and sums."""

    comptime device_type: AnyType = Self
    """Kernels receive the struct as it is."""

    var batch: Int
    """Batch entries."""
    var heads: Int
    """Heads of the query."""
    var key_heads: Int
    """Heads of key and value; each serves `heads / key_heads` query heads."""
    var queries: Int
    """Positions of the query."""
    var keys: Int
    """Positions of key and value."""
    var depth: Int
    """Features of query and key."""
    var value_depth: Int
    """Features of value and output."""
    var mask_kind: Int
    """`MASK_NONE`, `MASK_BOOL`, `MASK_SAME` or `MASK_FLOAT`."""
    var mask: Heads[DType.uint8]
    """The mask [batch, heads, queries, keys]; strides in its own elements."""
    var is_causal: Bool
    """Whether query i may only see keys up to i."""
    var scale: Scalar[Self.ACCUMULATE]
    """The factor of the scores."""
    var dropout: Float32
    """The probability with which a weight is dropped."""
    var kept: Scalar[Self.ACCUMULATE]
    """What other weights are multiplied with: 1 / (1 - dropout)."""
    var seed: UInt64
    """The key of the Philox generator that draws what is dropped."""
    var offset: UInt64
    """The first counter of the generator."""

    def __init__(
        out self,
        call: KernelCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
    ) raises:
        """Reads a call's scalars: is_causal, scale, dropout_p, seed, offset.

        Args:
            call: The call.
            query: [batch, heads, queries, depth].
            key: [batch, key heads, keys, depth].
            value: [batch, key heads, keys, value depth].
            mask: Broadcastable to [batch, heads, queries, keys], or absent.

        Raises:
            ValueError: If the sizes do not fit together.
        """
        if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
            raise Error(
                "ValueError: attention needs query, key and value of four"
                " dimensions"
            )
        self.batch = query.size(0)
        self.heads = query.size(1)
        self.key_heads = key.size(1)
        self.queries = query.size(2)
        self.keys = key.size(2)
        self.depth = query.size(3)
        self.value_depth = value.size(3)
        if self.key_heads == 0 or self.heads % self.key_heads != 0:
            raise Error(
                "ValueError: attention with ",
                self.heads,
                " query heads cannot share ",
                self.key_heads,
                " key heads: the second number must divide the first",
            )
        self.mask_kind = MASK_NONE
        if not mask.is_absent():
            if Int(mask.dtype) == 11:
                self.mask_kind = MASK_BOOL
            elif mask.dtype == query.dtype:
                self.mask_kind = MASK_SAME
            elif Int(mask.dtype) == 6:
                self.mask_kind = MASK_FLOAT
            else:
                raise Error(
                    "TypeError: the attention mask must be bool, float32 or of"
                    " the query's dtype"
                )
        self.mask = Heads[DType.uint8](mask)
        self.is_causal = call.int_scalar(0) != 0
        self.scale = call.float_scalar(1).cast[Self.ACCUMULATE]()
        var dropout = call.float_scalar(2)
        self.dropout = dropout.cast[DType.float32]()
        self.kept = (1 / (1 - dropout)).cast[Self.ACCUMULATE]()
        self.seed = UInt64(call.int_scalar(3))
        self.offset = UInt64(call.int_scalar(4))

    @staticmethod
    def get_type_name() -> String:
        """The name in messages.

        Returns:
            The struct's name.
        """
        return "Problem"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def visible_keys(self, last_query: Int) -> Int:
        """How many keys a block of queries can see at most.

        Args:
            last_query: The block's last query.

        Returns:
            A number of keys, from the first.
        """
        return min(self.keys, last_query + 1) if self.is_causal else self.keys

    @inline(.always)
    def draw(self, key: Int) -> UInt64:
        """The draw that decides whether a weight is dropped.

        Args:
            key: The weight's key.

        Returns:
            The low half of the generator's counter.
        """
        return self.offset // 4 + UInt64(key // 4)

    @inline(.always)
    def keep_factor[
        width: Int
    ](self, bits: SIMD[DType.uint32, width]) -> SIMD[Self.ACCUMULATE, width]:
        """What dropout multiplies weights with.

        Parameters:
            width: The number of weights.

        Args:
            bits: Random bits.

        Returns:
            0 with probability p, else 1 / (1 - p).
        """
        comptime Vector = SIMD[Self.ACCUMULATE, width]
        return (
            uniform_float32(bits)
            .gt(self.dropout)
            .select(Vector(self.kept), Vector(0))
        )
