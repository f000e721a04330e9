"""The GPU driver of the native core: `MojoDriver` of mojo_runtime.h over MAX's DeviceContext.

Every exported function is `mojo_driver_` and the name of a field of that struct; the Python package puts their addresses
there. A *context* is the handle of a DeviceContext on the device's default stream, a *stream* the handle of a
DeviceContext on that stream: what kernels get as `device_context`. Both live as long as the process.

Events are the vendor's own (CUDA's and HIP's have one interface), because MAX's cannot be asked whether they are complete
or how far they are apart. Where the vendor's library is not loaded they are MAX's, and a question waits for the answer.
"""

from std.ffi import external_call
from std.sys.info import size_of

from max.gpu.host import (
    DeviceAttribute,
    DeviceBuffer,
    DeviceContext,
    DeviceEvent,
    HostBuffer,
)

comptime Address = Pointer[NoneType, MutUntrackedOrigin]
"""C's `void *`."""
comptime Text = Pointer[UInt8, MutUntrackedOrigin]
"""C's `char *`."""
comptime Out[T: AnyType] = Pointer[T, MutUntrackedOrigin]
"""Where a result goes."""

comptime OK: Int32 = 0
comptime NOT_IMPLEMENTED: Int32 = 1
comptime RUNTIME_ERROR: Int32 = 2
comptime OUT_OF_MEMORY: Int32 = 3

comptime HOST_TO_DEVICE: Int32 = 0
comptime DEVICE_TO_HOST: Int32 = 1

comptime NO_TIMING: UInt32 = 2
"""CU_EVENT_DISABLE_TIMING and hipEventDisableTiming."""
comptime NOT_READY: Int32 = 600
"""CUDA_ERROR_NOT_READY and hipErrorNotReady."""


def report(error: Error, text: Text, capacity: Int64) -> Int32:
    """Writes a failure's message for the native core.

    Args:
        error: What went wrong.
        text: Where the message goes, NUL-terminated.
        capacity: The size of `text` in bytes.

    Returns:
        The status: out of memory where MAX says so, else a runtime error.
    """
    var message = String(error)
    var length = min(message.byte_length(), Int(capacity) - 1)
    for i in range(length):
        text.unsafe_store(i, message.unsafe_ptr().unsafe_load(i))
    text.unsafe_store(length, 0)
    var lower = message.lower()
    if "out of memory" in lower or "out_of_memory" in lower:
        return OUT_OF_MEMORY
    return RUNTIME_ERROR


def box[T: Movable](var value: T) -> Out[T]:
    """Moves a value to the heap, where the native core holds it by its address.

    Parameters:
        T: The value's type.

    Args:
        value: The value.

    Returns:
        Its place, for `unbox`.
    """
    var place = external_call["malloc", Out[T]](size_of[T]())
    place.unsafe_write(value^)
    return place


def unbox[T: Movable & Deinitable](place: Out[T]):
    """Ends a boxed value.

    Parameters:
        T: The value's type.

    Args:
        place: What `box` returned.
    """
    place.unsafe_deinit_pointee()
    external_call["free", NoneType](place)


def keep(context: DeviceContext) -> Address:
    """Returns the handle of a context and keeps the context alive for good.

    Args:
        context: A context or a view of one on another stream.

    Returns:
        The handle.
    """
    return Address(
        unsafe_from_address=Int(box(context.copy())[]._handle.value())
    )


def bytes_at(
    context: DeviceContext, address: Address, count: UInt64
) -> DeviceBuffer[DType.uint8]:
    """Makes a buffer over device memory that it does not own.

    Args:
        context: Orders what is done with the buffer.
        address: Its first byte.
        count: Its size in bytes.

    Returns:
        The buffer.
    """
    return DeviceBuffer[DType.uint8](
        context, address.unsafe_bitcast[UInt8](), Int(count), owning=False
    )


# ---- devices and memory


@export("mojo_driver_count")
def count() abi("C") -> Int32:
    """The number of GPUs.

    Returns:
        Zero or more.
    """
    return Int32(DeviceContext.number_of_devices())


@export("mojo_driver_properties")
def properties(
    device: Int32,
    name: Text,
    name_capacity: Int64,
    multiprocessors: Out[Int64],
    memory: Out[Int64],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Describes a GPU.

    Args:
        device: Its number.
        name: Where its name goes, NUL-terminated.
        name_capacity: The size of `name` in bytes.
        multiprocessors: Streaming multiprocessors or compute units.
        memory: In bytes.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var context = DeviceContext(device_id=Int(device))
        _ = report(Error(context.name()), name, name_capacity)
        multiprocessors[] = Int64(
            context.get_attribute(DeviceAttribute.MULTIPROCESSOR_COUNT)
        )
        memory[] = Int64(context.get_memory_info()[1])
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_open")
def open(
    device: Int32, context: Out[Address], error: Text, capacity: Int64
) abi("C") -> Int32:
    """Opens a GPU.

    Args:
        device: Its number.
        context: The new context.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        context[] = keep(DeviceContext(device_id=Int(device)))
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_allocate")
def allocate(
    context: Address,
    size: UInt64,
    handle: Out[Out[DeviceBuffer[DType.uint8]]],
    data: Out[Address],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Allocates device memory.

    Args:
        context: Orders the allocation.
        size: In bytes.
        handle: The buffer, for `release`.
        data: Its first byte.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var buffer = DeviceContext(context).enqueue_create_buffer[DType.uint8](
            Int(size)
        )
        data[] = Address(unsafe_from_address=Int(buffer.unsafe_ptr()))
        handle[] = box(buffer^)
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_release")
def release(
    context: Address,
    handle: Out[DeviceBuffer[DType.uint8]],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Frees device memory, after what was enqueued on the context.

    Args:
        context: Orders the release.
        handle: The buffer.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    unbox(handle)
    return OK


@export("mojo_driver_pinned_allocate")
def pinned_allocate(
    context: Address,
    size: UInt64,
    handle: Out[Out[HostBuffer[DType.uint8]]],
    data: Out[Address],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Allocates page-locked host memory.

    Args:
        context: Of the device whose copies use it.
        size: In bytes.
        handle: The buffer, for `pinned_release`.
        data: Its first byte.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var device = DeviceContext(context)
        var buffer = device.enqueue_create_host_buffer[DType.uint8](Int(size))
        device.synchronize()  # the host may write at once
        data[] = Address(unsafe_from_address=Int(buffer.unsafe_ptr()))
        handle[] = box(buffer^)
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_pinned_release")
def pinned_release(
    context: Address,
    handle: Out[HostBuffer[DType.uint8]],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Frees page-locked memory that no copy uses any more.

    Args:
        context: Of the device.
        handle: The buffer.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    unbox(handle)
    return OK


@export("mojo_driver_copy")
def copy(
    stream: Address,
    destination: Address,
    source: Address,
    size: UInt64,
    kind: Int32,
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Enqueues a copy.

    Args:
        stream: Orders the copy.
        destination: The first byte.
        source: The first byte.
        size: In bytes.
        kind: HOST_TO_DEVICE, DEVICE_TO_HOST, or else device to device.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var context = DeviceContext(stream)
        if size == 0:
            return OK
        if kind == HOST_TO_DEVICE:
            context.enqueue_copy(
                bytes_at(context, destination, size),
                source.unsafe_bitcast[UInt8](),
            )
        elif kind == DEVICE_TO_HOST:
            context.enqueue_copy(
                destination.unsafe_bitcast[UInt8](),
                bytes_at(context, source, size),
            )
        else:
            context.enqueue_copy(
                bytes_at(context, destination, size),
                bytes_at(context, source, size),
            )
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_memory_info")
def memory_info(
    context: Address,
    free: Out[UInt64],
    total: Out[UInt64],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Asks for the memory of a device.

    Args:
        context: Of the device.
        free: In bytes.
        total: In bytes.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var info = DeviceContext(context).get_memory_info()
        free[] = UInt64(info[0])
        total[] = UInt64(info[1])
        return OK
    except e:
        return report(e, error, capacity)


# ---- streams


@export("mojo_driver_stream_create")
def stream_create(
    context: Address,
    priority: Int32,
    stream: Out[Address],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Makes a stream. Metal has one queue and makes none.

    Args:
        context: Of the device.
        priority: As CUDA numbers them; clamped to the device's range.
        stream: The new stream.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status; NOT_IMPLEMENTED where the default stream is the only one.
    """
    try:
        var device = DeviceContext(context)
        if device.api() == "metal":
            return NOT_IMPLEMENTED
        var limits = device.stream_priority_range()
        var lowest = max(limits.least, limits.greatest)
        var highest = min(limits.least, limits.greatest)
        var index = device.num_streams()
        _ = device.create_stream(
            priority=max(highest, min(lowest, Int(priority)))
        )
        stream[] = keep(device.select_stream(index))
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_stream_synchronize")
def stream_synchronize(
    stream: Address, error: Text, capacity: Int64
) abi("C") -> Int32:
    """Waits for a stream.

    Args:
        stream: The stream.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        DeviceContext(stream).stream().synchronize()
        return OK
    except e:
        return report(e, error, capacity)


def native_stream(context: DeviceContext) raises -> Int:
    """Returns the CUstream or hipStream_t of a stream.

    Args:
        context: The stream.

    Returns:
        The vendor's handle; the null stream's is 0.

    Raises:
        If the device has no such handle.
    """
    var result = 0
    var stream = context.stream()
    var message: Int
    if context.api() == "cuda":
        message = external_call["AsyncRT_DeviceStream_cuda_stream", Int](
            Pointer(to=result), stream._handle
        )
    elif context.api() == "hip":
        message = external_call["AsyncRT_DeviceStream_hip_stream", Int](
            Pointer(to=result), stream._handle
        )
    else:
        raise Error("streams of ", context.api(), " have no native handle")
    if message != 0:
        raise Error(
            String(unsafe_from_utf8_ptr=Text(unsafe_from_address=message))
        )
    return result


@export("mojo_driver_stream_native")
def stream_native(
    stream: Address, native: Out[Int], error: Text, capacity: Int64
) abi("C") -> Int32:
    """Asks for the vendor's handle of a stream.

    Args:
        stream: The stream.
        native: The CUstream or hipStream_t.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        native[] = native_stream(DeviceContext(stream))
        return OK
    except e:
        return report(e, error, capacity)


# ---- events


comptime Create = def(Out[Int], UInt32) abi("C") thin -> Int32
"""CUDA: cuEventCreate."""
comptime WithStream = def(Int, Int) abi("C") thin -> Int32
"""CUDA: cuEventRecord."""
comptime Wait = def(Int, Int, UInt32) abi("C") thin -> Int32
"""CUDA: cuStreamWaitEvent."""
comptime WithEvent = def(Int) abi("C") thin -> Int32
"""CUDA: cuEventQuery, cuEventSynchronize, cuEventDestroy."""
comptime Elapsed = def(Out[Float32], Int, Int) abi("C") thin -> Int32
"""CUDA: cuEventElapsedTime."""


struct Event(Movable):
    """An event of the vendor's, or of MAX where the vendor's library is not loaded.
    """

    var context: DeviceContext
    """The device's."""
    var native: Int
    """The CUevent or hipEvent_t, 0 if there is none."""
    var fallback: Optional[DeviceEvent]
    """MAX's event."""

    def __init__(out self, context: DeviceContext, timing: Bool) raises:
        """Makes an event.

        Args:
            context: Of the device.
            timing: Whether its time can be asked for.

        Raises:
            If the device cannot have events.
        """
        self.context = context
        self.native = 0
        self.fallback = None
        if context.api() == "metal":
            raise Error(
                "mojo backend: events are not supported on Apple GPU (Metal)"
            )
        context.set_as_current()
        var address = vendor_function(
            context, "cuEventCreate", "hipEventCreateWithFlags"
        )
        if address == 0:
            self.fallback = context.create_event()
            return
        var native = 0
        check(
            Pointer(to=address).unsafe_bitcast[Create]()[](
                Out[Int](unsafe_from_address=Int(Pointer(to=native))),
                UInt32(0) if timing else NO_TIMING,
            ),
            "creating an event",
        )
        self.native = native

    def call[
        Function: TrivialRegisterPassable
    ](self, cuda: String, hip: String) raises -> Function:
        """Finds a function of the vendor's library.

        Parameters:
            Function: Its type.

        Args:
            cuda: The name in libcuda.
            hip: The name in libamdhip64.

        Returns:
            The function.

        Raises:
            If there is none.
        """
        var address = vendor_function(self.context, cuda, hip)
        if address == 0:
            raise Error("there is no ", cuda, " and no ", hip)
        return Pointer(to=address).unsafe_bitcast[Function]()[]


comptime Events = Pointer[Event, MutUntrackedOrigin]
"""What the native core holds."""


def check(result: Int32, what: String) raises:
    """Raises what a vendor's function returned.

    Args:
        result: CUresult or hipError_t.
        what: What was tried.

    Raises:
        If it failed.
    """
    if result != 0:
        raise Error(what, " failed with the driver's error ", result)


def vendor_function(
    context: DeviceContext, var cuda: String, var hip: String
) raises -> Int:
    """Finds a function of the vendor's library, which MAX has loaded.

    Args:
        context: Tells the vendor.
        cuda: The name in libcuda.
        hip: The name in libamdhip64.

    Returns:
        Its address, 0 where the library is not loaded.
    """
    var is_cuda = context.api() == "cuda"
    var library = String("libcuda.so.1") if is_cuda else String(
        "libamdhip64.so"
    )
    comptime lazy_if_loaded: Int32 = 0x1 | 0x4  # RTLD_LAZY | RTLD_NOLOAD
    var handle = external_call["dlopen", Int](
        library.as_c_string_span().ptr(), lazy_if_loaded
    )
    if handle == 0:
        return 0
    if not is_cuda:
        swap(cuda, hip)
    return external_call["dlsym", Int](handle, cuda.as_c_string_span().ptr())


@export("mojo_driver_event_create")
def event_create(
    context: Address,
    timing: Int32,
    event: Out[Events],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Makes an event.

    Args:
        context: Of the device.
        timing: Whether its time can be asked for.
        event: The new event.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        event[] = box(Event(DeviceContext(context), timing != 0))
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_destroy")
def event_destroy(
    event: Events, error: Text, capacity: Int64
) abi("C") -> Int32:
    """Frees an event; what waits for it goes on waiting.

    Args:
        event: The event.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        if event[].native != 0:
            check(
                event[].call[WithEvent]("cuEventDestroy_v2", "hipEventDestroy")(
                    event[].native
                ),
                "destroying an event",
            )
        unbox(event)
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_record")
def event_record(
    event: Events, stream: Address, error: Text, capacity: Int64
) abi("C") -> Int32:
    """Records an event behind what is enqueued on a stream.

    Args:
        event: The event.
        stream: Of the event's device.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var context = DeviceContext(stream)
        if event[].native != 0:
            context.set_as_current()
            check(
                event[].call[WithStream]("cuEventRecord", "hipEventRecord")(
                    event[].native, native_stream(context)
                ),
                "recording an event",
            )
        else:
            context.stream().record_event(event[].fallback.value())
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_wait")
def event_wait(
    event: Events, stream: Address, error: Text, capacity: Int64
) abi("C") -> Int32:
    """Makes a stream wait for an event.

    Args:
        event: The event.
        stream: Of any device.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        var context = DeviceContext(stream)
        if event[].native != 0:
            context.set_as_current()
            check(
                event[].call[Wait]("cuStreamWaitEvent", "hipStreamWaitEvent")(
                    native_stream(context), event[].native, 0
                ),
                "waiting for an event",
            )
        else:
            context.stream().enqueue_wait_for(event[].fallback.value())
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_query")
def event_query(
    event: Events, done: Out[Int32], error: Text, capacity: Int64
) abi("C") -> Int32:
    """Asks whether an event is complete; waits for it where MAX's cannot be asked.

    Args:
        event: The event.
        done: 1 if it is.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        done[] = 1
        if event[].native != 0:
            var result = event[].call[WithEvent](
                "cuEventQuery", "hipEventQuery"
            )(event[].native)
            if result == NOT_READY:
                done[] = 0
            else:
                check(result, "asking for an event")
        else:
            event[].fallback.value().synchronize()
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_synchronize")
def event_synchronize(
    event: Events, error: Text, capacity: Int64
) abi("C") -> Int32:
    """Waits for an event on the host.

    Args:
        event: The event.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        if event[].native != 0:
            check(
                event[].call[WithEvent](
                    "cuEventSynchronize", "hipEventSynchronize"
                )(event[].native),
                "synchronizing an event",
            )
        else:
            event[].fallback.value().synchronize()
        return OK
    except e:
        return report(e, error, capacity)


@export("mojo_driver_event_elapsed")
def event_elapsed(
    start: Events,
    end: Events,
    milliseconds: Out[Float64],
    error: Text,
    capacity: Int64,
) abi("C") -> Int32:
    """Measures the time between two complete events.

    Args:
        start: The first event.
        end: The second event.
        milliseconds: From the first to the second.
        error: Where a failure's message goes.
        capacity: The size of `error` in bytes.

    Returns:
        The status.
    """
    try:
        if start[].native == 0 or end[].native == 0:
            raise Error(
                "the GPU driver's library is not loaded: no event times"
            )
        var value = Float32(0)
        check(
            start[].call[Elapsed]("cuEventElapsedTime", "hipEventElapsedTime")(
                Out[Float32](unsafe_from_address=Int(Pointer(to=value))),
                start[].native,
                end[].native,
            ),
            "measuring the time between events",
        )
        milliseconds[] = Float64(value)
        return OK
    except e:
        return report(e, error, capacity)
