"""Out-of-range indices: recorded by threads that cannot raise, raised when all are done."""

from mojo_kernels.abi import Data
from std.sys.info import is_gpu


@fieldwise_init
struct Bounds(TrivialRegisterPassable):
    """The valid range of an index and the place where a violation is noted.

    On GPUs nothing is noted, as the host does not wait: elements with such an index are skipped.
    """

    var size: Int64
    """Valid indices are below it."""
    var report: Data[DType.int64]
    """Three host words: whether an index was out of range, that index, and `tag`."""
    var tag: Int64
    """Which of several ranges this is."""

    @inline(.always)
    def contains(self, index: Int) -> Bool:
        """Checks an index and notes a violation.

        Args:
            index: The index; negative is out of range.

        Returns:
            Whether it may be used.
        """
        if 0 <= index and index < Int(self.size):
            return True
        comptime if not is_gpu():
            self.report.unsafe_store(0, Int64(1))
            self.report.unsafe_store(1, Int64(index))
            self.report.unsafe_store(2, self.tag)
        return False


struct BoundsReport:
    """Owns the place where violations are noted."""

    var words: List[Int64]
    """See `Bounds.report`."""

    def __init__(out self):
        """Nothing noted."""
        self.words = List[Int64](length=3, fill=0)

    def bounds(self, size: Int, tag: Int = 0) -> Bounds:
        """The valid range for a kernel.

        Args:
            size: Valid indices are below it.
            tag: Which of several ranges this is.

        Returns:
            The range, which must not outlive this report.
        """
        return Bounds(
            Int64(size),
            Data[DType.int64](unsafe_from_address=Int(self.words.unsafe_ptr())),
            Int64(tag),
        )

    def violated(self) -> Bool:
        """Whether an index was out of range.

        Returns:
            True after a violation.
        """
        return self.words[0] != 0

    def raise_for_dimension(
        self, exception: StaticString, dimension: Int, size: Int
    ) raises:
        """Raises if an index was out of range, in torch's words.

        Args:
            exception: "IndexError: ", or nothing for RuntimeError.
            dimension: The indexed dimension.
            size: Its size.

        Raises:
            IndexError or RuntimeError: An index was out of range.
        """
        if self.violated():
            raise Error(
                exception,
                "index ",
                self.words[1],
                " is out of bounds for dimension ",
                dimension,
                " with size ",
                size,
            )
