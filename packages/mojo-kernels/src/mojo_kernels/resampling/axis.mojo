"""From the coordinates of an output to those of the input along one axis, with weights: padding and interpolation."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.trigonometry import sin
from mojo_kernels.volume import ScalarReader
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import floor, pi

comptime IDENTITY = 0
"""Coordinates stay."""
comptime CONSTANT = 1
"""Padding with a number."""
comptime REFLECT = 2
"""Padding that mirrors at the outermost elements."""
comptime REPLICATE = 3
"""Padding that repeats the outermost elements."""
comptime FLIP = 4
"""The order is reversed."""
comptime ROLL = 5
"""The end continues at the start."""
comptime NEAREST = 6
"""Interpolation by the nearest element, by the corner of an output."""
comptime NEAREST_EXACT = 7
"""Interpolation by the nearest element, by the centre of an output."""
comptime LINEAR = 8
"""Interpolation between two elements."""
comptime CUBIC = 9
"""Interpolation by cubic convolution of four elements."""
comptime LINEAR_AA = 10
"""A triangle as wide as an output, where outputs are wider than inputs."""
comptime CUBIC_AA = 11
"""A cubic kernel as wide as an output, where outputs are wider than inputs."""
comptime LANCZOS_AA = 12
"""A windowed sine as wide as an output, where outputs are wider than inputs."""


struct Axis[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """A map from outputs to inputs.

    Parameters:
        dtype: The type of positions and weights.
    """

    comptime device_type: AnyType = Self
    """The type on the device."""

    var kind: Int64
    """`IDENTITY` and so on."""
    var inputs: Int64
    """The size of the input."""
    var outputs: Int64
    """The size of the output."""
    var shift: Int64
    """The padding at the start, or by how much to roll."""
    var scale: Scalar[Self.dtype]
    """The distance of outputs in inputs, where interpolated."""
    var aligned: Int64
    """Whether the first and last elements of input and output coincide."""

    def __init__(out self, kind: Int, inputs: Int, outputs: Int):
        """An axis without parameters.

        Args:
            kind: `IDENTITY` or `FLIP`, or an axis whose parameters are set later.
            inputs: The size of the input.
            outputs: The size of the output.
        """
        self.kind = Int64(kind)
        self.inputs = Int64(inputs)
        self.outputs = Int64(outputs)
        self.shift = 0
        self.scale = 1
        self.aligned = 0

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Axis"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    def set_scale(mut self, aligned: Bool, factor: Float64):
        """Sets how far outputs are apart.

        Args:
            aligned: Whether the first and last elements coincide.
            factor: The output's size over the input's, as the caller gave it; 0 where the sizes say it.
        """
        self.aligned = Int64(aligned)
        if aligned:
            self.scale = 0
            if self.outputs > 1:
                self.scale = Scalar[Self.dtype](self.inputs - 1) / Scalar[
                    Self.dtype
                ](self.outputs - 1)
        elif factor > 0:
            self.scale = (1 / factor).cast[Self.dtype]()
        else:
            self.scale = Scalar[Self.dtype](self.inputs) / Scalar[Self.dtype](
                self.outputs
            )

    @inline(.always)
    def source(self, o: Int) -> Int:
        """The input of an output, for kinds with at most one.

        Args:
            o: The output's coordinate.

        Returns:
            The input's coordinate; -1 where it has none.
        """
        var last = Int(self.inputs) - 1
        var kind = Int(self.kind)
        if kind == IDENTITY:
            return o
        if kind >= NEAREST:
            return self._nearest(o)
        if kind == FLIP:
            return last - o
        var i = o - Int(self.shift)
        if kind == CONSTANT:
            return i if 0 <= i and i <= last else -1
        if kind == REPLICATE:
            return max(min(i, last), 0)
        if kind == ROLL:
            return i + last + 1 if i < 0 else i
        i = abs(i)
        return 2 * last - i if i > last else i

    @inline(.always)
    def _nearest(self, o: Int) -> Int:
        """The element that is nearest to an output, with the roundings of torch.
        """
        if self.kind == NEAREST:
            if self.outputs == self.inputs:
                return o
            if self.outputs == 2 * self.inputs:
                return o >> 1
        var position = Scalar[Self.dtype](o)
        if self.kind == NEAREST_EXACT:
            position += 0.5
        return min(Int(floor(position * self.scale)), Int(self.inputs) - 1)

    @inline(.always)
    def _position(self, o: Int) -> Scalar[Self.dtype]:
        """Where an output lies among the inputs."""
        if self.aligned != 0:
            return self.scale * Scalar[Self.dtype](o)
        return self.scale * (Scalar[Self.dtype](o) + 0.5) - 0.5

    @inline(.always)
    def _support(self) -> Scalar[Self.dtype]:
        """How far to both sides of an output's centre an antialiased kernel reaches.
        """
        var half = Scalar[Self.dtype](1)
        if self.kind == CUBIC_AA:
            half = 2
        elif self.kind == LANCZOS_AA:
            half = 3
        return half * max(self.scale, Scalar[Self.dtype](1))

    @inline(.always)
    def taps(self, o: Int) -> Taps[Self.dtype]:
        """The inputs of an output.

        Args:
            o: The output's coordinate.

        Returns:
            Where they start, how many there are, and what their weights depend on.
        """
        comptime Value = Scalar[Self.dtype]
        var kind = Int(self.kind)
        if kind < LINEAR:
            var i = self.source(o)
            return Taps[Self.dtype](i, 1 if i >= 0 else 0, 0, 1)
        if kind >= LINEAR_AA:
            var centre = self.scale * (Value(o) + 0.5)
            var support = self._support()
            var first = max(Int(centre - support + 0.5), 0)
            var last = min(Int(centre + support + 0.5), Int(self.inputs))
            var taps = Taps[Self.dtype](first, max(last - first, 0), 0, 1)
            taps.at = Value(first) - centre + 0.5
            var total = Value(0)
            for k in range(taps.count):
                total += self.weight(taps, k)
            if total != 0:
                taps.norm = 1 / total
            return taps
        if kind == LINEAR and self.inputs == self.outputs:
            return Taps[Self.dtype](o, 1, 0, 1)
        var position = self._position(o)
        if kind == LINEAR:
            position = max(position, Value(0))
        var first = min(Int(floor(position)), Int(self.inputs) - 1)
        var at = min(max(position - Value(first), Value(0)), Value(1))
        if kind == LINEAR:
            return Taps[Self.dtype](
                first, 2 if first + 1 < Int(self.inputs) else 1, at, 1
            )
        return Taps[Self.dtype](first - 1, 4, at, 1)

    @inline(.always)
    def index(self, taps: Taps[Self.dtype], k: Int) -> Int:
        """An input of an output.

        Args:
            taps: The output's inputs.
            k: Which of them.

        Returns:
            The input's coordinate.
        """
        if self.kind == CUBIC:
            return max(min(taps.first + k, Int(self.inputs) - 1), 0)
        return taps.first + k

    @inline(.always)
    def weight(self, taps: Taps[Self.dtype], k: Int) -> Scalar[Self.dtype]:
        """The weight of an input of an output.

        Args:
            taps: The output's inputs.
            k: Which of them.

        Returns:
            Its weight.
        """
        comptime Value = Scalar[Self.dtype]
        var kind = Int(self.kind)
        if kind < LINEAR:
            return 1
        if kind == LINEAR:
            if taps.count == 1:
                return 1
            return taps.at if k == 1 else 1 - taps.at
        if kind == CUBIC:
            return _cubic(abs(Value(k - 1) - taps.at), Value(-0.75))
        var x = abs((Value(k) + taps.at) / max(self.scale, Value(1)))
        var value = Value(0)
        if kind == LINEAR_AA:
            value = max(1 - x, Value(0))
        elif kind == CUBIC_AA:
            value = _cubic(x, Value(-0.5))
        elif x < 3:
            value = _sinc(x) * _sinc(x / 3)
        return value * taps.norm

    @inline(.always)
    def weight_of(self, o: Int, i: Int) -> Scalar[Self.dtype]:
        """How much an input contributes to an output.

        Args:
            o: The output's coordinate.
            i: The input's coordinate.

        Returns:
            The sum of the weights with which it stands among the output's inputs.
        """
        var taps = self.taps(o)
        var sum = Scalar[Self.dtype](0)
        for k in range(taps.count):
            if self.index(taps, k) == i:
                sum += self.weight(taps, k)
        return sum

    @inline(.always)
    def first_output(self, i: Int) -> Int:
        """The first output that an input may contribute to.

        Args:
            i: The input's coordinate.

        Returns:
            A coordinate; the outputs from there to `last_output` include all.
        """
        var kind = Int(self.kind)
        if kind < NEAREST:
            var last = Int(self.inputs) - 1
            var end = Int(self.outputs - self.inputs - self.shift)
            if i == 0 or (
                kind == REFLECT and (i <= Int(self.shift) or last - i <= end)
            ):
                return 0
            return max(i + Int(self.shift), 0)
        if i == 0 or self.scale == 0:
            return 0
        return max(Int(self._output_of(i, -1)) - 1, 0)

    @inline(.always)
    def last_output(self, i: Int) -> Int:
        """One past the last output that an input may contribute to.

        Args:
            i: The input's coordinate.

        Returns:
            A coordinate.
        """
        var kind = Int(self.kind)
        var last = Int(self.inputs) - 1
        var outputs = Int(self.outputs)
        if kind < NEAREST:
            var end = outputs - last - 1 - Int(self.shift)
            if i == last or (
                kind == REFLECT and (i <= Int(self.shift) or last - i <= end)
            ):
                return outputs
            return min(i + Int(self.shift) + 1, outputs)
        if i == last or self.scale == 0:
            return outputs
        return min(Int(self._output_of(i, 1)) + 3, outputs)

    @inline(.always)
    def _output_of(self, i: Int, side: Int) -> Scalar[Self.dtype]:
        """About where the outputs that an input contributes to end, at one side.
        """
        comptime Value = Scalar[Self.dtype]
        var reach = Value(3)
        if self.kind >= LINEAR_AA:
            reach = self._support() + 1
        return max((Value(i) + Value(side) * reach) / self.scale, Value(0))


@fieldwise_init
struct Taps[dtype: DType](TrivialRegisterPassable):
    """The inputs of an output.

    Parameters:
        dtype: The type of positions and weights.
    """

    var first: Int
    """The first input, before clamping."""
    var count: Int
    """How many there are."""
    var at: Scalar[Self.dtype]
    """Where the output lies after the first input, or after the second of four; the first input's position from the
    output's centre where antialiased."""
    var norm: Scalar[Self.dtype]
    """What brings the sum of the weights to 1."""


@inline(.always)
def _cubic[dtype: DType](x: Scalar[dtype], a: Scalar[dtype]) -> Scalar[dtype]:
    """The cubic convolution kernel of Keys (1981).

    Args:
        x: The distance, not negative.
        a: The slope at distance 1.
    """
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    if x < 2:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return 0


def _sinc[dtype: DType](x: Scalar[dtype]) -> Scalar[dtype]:
    """`sin(pi x) / (pi x)`."""
    if x == 0:
        return 1
    var angle = Scalar[dtype](pi) * x
    return sin(angle) / angle


struct AxisReader(Movable):
    """Reads the axes of a call from its scalars.

    The first is the kind; what follows is what the op's schema has: for padding int[], a pair per axis from the last one
    on; to flip an int[] of bools; to roll an int[] of distances; to interpolate the number of axes, for `LINEAR` and above
    whether corners align, then per axis an optional factor.
    """

    var reader: ScalarReader
    """Stands behind the axes."""
    var kind: Int
    """The kind of all axes that are not `IDENTITY`."""
    var spatial: Int
    """How many axes, counted from the last, have parameters."""
    var start: Int
    """The first parameter's word."""
    var aligned: Bool
    """Whether corners align."""

    def __init__(out self, call: KernelCall):
        """Reads everything.

        Args:
            call: The call.
        """
        self.reader = ScalarReader(0)
        self.kind = self.reader.next(call)
        self.spatial = self.reader.next(call)
        self.aligned = False
        if self.kind < NEAREST:
            self.start = self.reader.position
            self.reader.position += self.spatial
            if self.kind != FLIP and self.kind != ROLL:
                self.spatial //= 2
        else:
            if self.kind >= LINEAR:
                self.aligned = self.reader.next(call) != 0
            self.start = self.reader.position
            for _ in range(self.spatial):
                if self.reader.next(call) != 0:
                    self.reader.position += 1

    def axis[
        dtype: DType
    ](
        self,
        call: KernelCall,
        dimension: Int,
        ndim: Int,
        inputs: Int,
        outputs: Int,
    ) -> Axis[dtype]:
        """The axis of a dimension.

        Parameters:
            dtype: The type of positions and weights.

        Args:
            call: The call.
            dimension: From 0.
            ndim: The number of dimensions.
            inputs: The size of the input.
            outputs: The size of the output.

        Returns:
            The axis; `IDENTITY` where nothing changes.
        """
        var result = Axis[dtype](self.kind, inputs, outputs)
        var k = dimension - (ndim - self.spatial)
        if k < 0:
            result.kind = IDENTITY
        elif self.kind < FLIP:
            var word = self.start + 2 * (self.spatial - 1 - k)
            result.shift = Int64(call.int_scalar(word))
            if result.shift == 0 and inputs == outputs:
                result.kind = IDENTITY
        elif self.kind < NEAREST:
            result.shift = Int64(call.int_scalar(self.start + k))
            if result.shift == 0:
                result.kind = IDENTITY
        else:
            var word = self.start
            for _ in range(k):
                word += 1 + Int(call.int_scalar(word) != 0)
            var factor = Float64(0)
            if call.int_scalar(word) != 0:
                factor = call.float_scalar(word + 1)
            result.set_scale(self.aligned, factor)
            if self.kind == NEAREST and inputs == outputs:
                result.kind = IDENTITY
        return result
