"""The calling convention of every kernel: `def kernel[...](call: KernelCall) raises`.

The C side is `kernel_abi.h` of mojo-runtime; both must agree byte for byte.
"""

comptime Address = Pointer[UInt8, MutUntrackedOrigin]
"""An untyped address, C's `void *`."""
comptime Data[dtype: DType] = Pointer[Scalar[dtype], MutUntrackedOrigin]
"""A typed address of tensor elements."""
comptime Words = Pointer[Int64, MutUntrackedOrigin]
"""An array of 64-bit words: sizes, strides or scalars."""
comptime TaskFunction = def(Address, Int) abi("C") thin -> None
"""C's `void (*)(void *context, int64_t index)`."""
comptime ParallelForFunction = def(TaskFunction, Address, Int) abi(
    "C"
) thin -> None
"""C's `void (*)(task, void *context, int64_t count)`."""

comptime HOST_SCALAR = 1
"""Flag: the one element of the tensor is host memory inside the call; GPU kernels pass its value by argument."""
comptime ABSENT = 2
"""Flag: an optional tensor that was not given."""


@inline(.always)
def text_word[text: StaticString]() -> Int:
    """The word that stands for a text among the scalars, for comparisons.

    Parameters:
        text: At least the first 8 bytes tell apart what a kernel compares.

    Returns:
        Its first 8 bytes, the first the lowest; missing ones are 0.
    """
    var word = 0
    comptime for i in range(min(8, text.byte_length())):
        word |= Int(text.unsafe_ptr().unsafe_load(i)) << (8 * i)
    return word


@fieldwise_init
struct Tensor(TrivialRegisterPassable):
    """A strided view of device memory; `MojoTensor` in C."""

    var data: Address
    """The first element, the storage offset applied."""
    var sizes: Words
    """`ndim` sizes."""
    var strides: Words
    """`ndim` strides in elements; 0 where expanded."""
    var numel: Int64
    """The product of the sizes."""
    var dtype: Int32
    """The element type's code, `MojoDType` in C."""
    var ndim: Int16
    """The number of dimensions."""
    var flags: Int16
    """`HOST_SCALAR` and `ABSENT`."""

    @inline(.always)
    def pointer[dtype: DType](self) -> Data[dtype]:
        """The address of the first element.

        Parameters:
            dtype: The element type, which must be the tensor's.

        Returns:
            The typed address.
        """
        return Data[dtype](unsafe_from_address=Int(self.data))

    @inline(.always)
    def size(self, dimension: Int) -> Int:
        """The size of a dimension.

        Args:
            dimension: From 0; negative counts from the end.

        Returns:
            The number of elements along it.
        """
        return Int(
            self.sizes.unsafe_load(
                dimension + (Int(self.ndim) if dimension < 0 else 0)
            )
        )

    @inline(.always)
    def stride(self, dimension: Int) -> Int:
        """The stride of a dimension in elements.

        Args:
            dimension: From 0; negative counts from the end.

        Returns:
            The distance in elements between neighbours along it.
        """
        return Int(
            self.strides.unsafe_load(
                dimension + (Int(self.ndim) if dimension < 0 else 0)
            )
        )

    @inline(.always)
    def is_absent(self) -> Bool:
        """Whether this is an optional tensor that was not given.

        Returns:
            True if there is no tensor.
        """
        return (Int(self.flags) & ABSENT) != 0

    @inline(.always)
    def is_host_scalar(self) -> Bool:
        """Whether the one element lies in host memory.

        Returns:
            True if a GPU kernel must pass the value by argument.
        """
        return (Int(self.flags) & HOST_SCALAR) != 0

    def is_contiguous(self) -> Bool:
        """Whether the elements lie in row-major order without gaps.

        Returns:
            True for a contiguous view; dimensions of size 1 do not matter.
        """
        var expected = 1
        for i in range(Int(self.ndim) - 1, -1, -1):
            var size = self.size(i)
            if size != 1:
                if self.stride(i) != expected:
                    return False
                expected *= size
        return True


struct KernelCall:
    """Everything a kernel is called with; `MojoKernelCall` in C."""

    var tensors: Pointer[Tensor, MutUntrackedOrigin]
    """`n_tensors` tensors, outputs first."""
    var n_tensors: Int64
    """The number of tensors."""
    var scalars: Words
    """`n_scalars` words: int64 values, or the bits of float64 values."""
    var n_scalars: Int64
    """The number of words."""
    var device_context: Address
    """On GPUs the handle of the stream's `DeviceContext`; NULL on CPUs."""
    var parallel_for: ParallelForFunction
    """The runtime's thread pool."""
    var threads: Int64
    """How many threads `parallel_for` can use, the caller included."""
    var error: Address
    """Where the message of a failure goes."""
    var error_capacity: Int64
    """The size of `error` in bytes."""

    @inline(.always)
    def tensor(self, i: Int) -> Tensor:
        """One of the tensors.

        Args:
            i: Its position; outputs come first.

        Returns:
            The view.
        """
        return self.tensors.unsafe_offset(i)[]

    @inline(.always)
    def int_scalar(self, i: Int) -> Int:
        """A word of `scalars` as an integer.

        Args:
            i: The word's position.

        Returns:
            The value.
        """
        return Int(self.scalars.unsafe_load(i))

    @inline(.always)
    def float_scalar(self, i: Int) -> Float64:
        """A word of `scalars` as a float64.

        Args:
            i: The word's position.

        Returns:
            The value.
        """
        return Data[DType.float64](
            unsafe_from_address=Int(self.scalars)
        ).unsafe_load(i)

    @inline(.always)
    def number[dtype: DType](self, i: Int) -> Scalar[dtype]:
        """A Number (two words: int64 value, float64 value) as a scalar of a type.

        Parameters:
            dtype: The type to return.

        Args:
            i: The position of the first of the two words.

        Returns:
            The float64 value converted for floating types, else the int64 value.
        """
        comptime if dtype.is_floating_point():
            return self.float_scalar(i + 1).cast[dtype]()
        elif dtype == DType.bool:
            # Not `ne`, which is False for NaN.
            return (~self.float_scalar(i + 1).eq(0))._refine[dtype]()
        else:
            return self.scalars.unsafe_load(i).cast[dtype]()

    @inline(.always)
    def parallel[Body: def(Int) -> None](self, body: Body, count: Int):
        """Runs `body(i)` for i in [0, count) on the runtime's threads and waits for all.

        Parameters:
            Body: The type of the closure, which must not raise.

        Args:
            body: What to run; calls may run at the same time on several threads.
            count: How often. One call runs here, without a hand-over.
        """
        if count == 1:
            body(0)
            return

        def trampoline(context: Address, i: Int) abi("C"):
            Pointer[Body, MutUntrackedOrigin](
                unsafe_from_address=Int(context)
            )[](i)

        self.parallel_for(
            trampoline,
            Address(unsafe_from_address=Int(Pointer(to=body))),
            count,
        )

    def fail(self, error: Error) -> Int32:
        """Writes a failure's message for the caller.

        Args:
            error: A message, which may start with the name of a Python exception and a colon, e.g. `IndexError: `.

        Returns:
            The status code, `MojoStatus` in C; RuntimeError where the message names no exception.
        """
        var message = String(error)
        var status: Int32 = 2
        var start = 0
        if message.startswith("NotImplementedError: "):
            status = 1
            start = 21
        elif message.startswith("IndexError: "):
            status = 4
            start = 12
        elif message.startswith("ValueError: "):
            status = 5
            start = 12
        elif message.startswith("TypeError: "):
            status = 6
            start = 11
        var length = min(
            message.byte_length() - start, Int(self.error_capacity) - 1
        )
        for i in range(length):
            self.error.unsafe_store(
                i, message.unsafe_ptr().unsafe_load(start + i)
            )
        self.error.unsafe_store(length, 0)
        return status


comptime Call = Pointer[KernelCall, MutUntrackedOrigin]
"""What an exported kernel receives."""
