/* The native core of mojo-runtime: devices, memory, streams, events, kernel slots and the launch queue.
 *
 * Used by the Python package through ctypes and by native frontends directly. No torch, no Python.h.
 * Functions that can fail return a MojoStatus; mojo_last_error() then holds this thread's message.
 * A device is an index from 0; MOJO_HOST stands for host memory. Stream 0 of a device is its default stream.
 */
#pragma once
#include "kernel_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOJO_API __attribute__((visibility("default")))
#define MOJO_HOST (-1)

MOJO_API const char* mojo_last_error(void);

/* ---- devices ------------------------------------------------------------------------------------------------- */

/* Implemented in Mojo (driver.mojo) for GPUs; the CPU devices are built in. Every function returns a MojoStatus and
 * writes a message of at most `capacity` bytes into `error` when it fails. */
typedef struct MojoDriver {
  int32_t (*open)(int32_t device, void** context, char* error, int64_t capacity);
  int32_t (*allocate)(void* context, uint64_t bytes, void** handle, void** data, char* error, int64_t capacity);
  int32_t (*release)(void* context, void* handle, char* error, int64_t capacity);
  int32_t (*pinned_allocate)(void* context, uint64_t bytes, void** handle, void** data, char* error, int64_t capacity);
  int32_t (*pinned_release)(void* context, void* handle, char* error, int64_t capacity);
  /* kind: 0 host to device, 1 device to host, 2 device to device; ordered on the stream's context */
  int32_t (*copy)(void* stream, void* destination, const void* source, uint64_t bytes, int32_t kind, char* error,
                  int64_t capacity);
  int32_t (*stream_create)(void* context, int32_t priority, void** stream, char* error, int64_t capacity);
  int32_t (*stream_synchronize)(void* stream, char* error, int64_t capacity);
  int32_t (*event_create)(void* context, int32_t timing, void** event, char* error, int64_t capacity);
  int32_t (*event_destroy)(void* event, char* error, int64_t capacity);
  int32_t (*event_record)(void* event, void* stream, char* error, int64_t capacity);
  int32_t (*event_wait)(void* event, void* stream, char* error, int64_t capacity);
  int32_t (*event_query)(void* event, int32_t* done, char* error, int64_t capacity);
  int32_t (*event_synchronize)(void* event, char* error, int64_t capacity);
  int32_t (*event_elapsed)(void* start, void* end, double* milliseconds, char* error, int64_t capacity);
  int32_t (*memory_info)(void* context, uint64_t* free_bytes, uint64_t* total_bytes, char* error, int64_t capacity);
  /* the vendor's handle, e.g. a CUstream */
  int32_t (*stream_native)(void* stream, void** native, char* error, int64_t capacity);
} MojoDriver;

/* Opens `count` devices: CPU devices where driver is NULL. Callable once with effect; later calls must agree. threads
 * as for mojo_set_threads. */
MOJO_API int32_t mojo_initialize(const MojoDriver* driver, int32_t count, int32_t threads);
MOJO_API int32_t mojo_device_count(void);
MOJO_API int32_t mojo_is_cpu(void);
/* MOJO_OK, or why the device cannot be used here: not initialized, forked, out of range. */
MOJO_API int32_t mojo_check_device(int32_t device);
/* 1 in a process forked after mojo_initialize: every other call then fails with a message that names spawn. */
MOJO_API int32_t mojo_in_bad_fork(void);
MOJO_API void mojo_parallel_for(MojoTask task, void* context, int64_t count);
MOJO_API int32_t mojo_threads(void);
/* 0: the cores this process may use. Not inside a parallel loop. */
MOJO_API int32_t mojo_set_threads(int32_t threads);
/* Names a loaded library whose OpenMP runtime lends its threads: the first one counts, and none does without GNU's
 * interface. */
MOJO_API void mojo_use_openmp_of(const char* library);
/* Between the two, which a thread calls that waits meanwhile for who runs loops, a team is kept awake for them: the
 * pool's workers, or the caller's OpenMP threads where it has some. The end waits for those and returns whether there
 * was a loop. */
MOJO_API void mojo_team_begin(int32_t of_openmp);
MOJO_API int32_t mojo_team_end(void);

/* The lock of the interpreter that calls these functions. A wait of the host gives it back if its thread holds it, as
 * torch's Python bindings do here and there: what is waited for may be a kernel that a thread of the interpreter
 * compiles. Functions as Python's PyGILState_Check, PyEval_SaveThread and PyEval_RestoreThread. */
typedef struct MojoInterpreterLock {
  int (*held)(void);
  void* (*release)(void);
  void (*acquire)(void* released);
} MojoInterpreterLock;
/* Before mojo_initialize. */
MOJO_API void mojo_set_interpreter_lock(const MojoInterpreterLock* lock);

/* ---- memory -------------------------------------------------------------------------------------------------- */

typedef struct MojoMemoryStatistics {
  int64_t allocated_current, allocated_peak, allocated_total, freed_total; /* bytes */
  int64_t reserved_current, reserved_peak;
  int64_t allocations_current, allocations_peak, allocations_total, frees_total; /* counts */
  int64_t out_of_memory_count;
} MojoMemoryStatistics;

/* `stream` orders the reuse of the memory: once freed it may be handed out again, at once for work that is queued on
 * that stream later, to others when the stream has come past the free. So whoever touches it outside of the stream, the
 * host included, waits for the stream first, also right after the allocation. 64-byte aligned; NULL for 0 bytes. */
MOJO_API int32_t mojo_allocate(int32_t device, uint64_t bytes, int64_t stream, void** data);
MOJO_API void mojo_free(void* data);
/* Work queued so far on `stream` uses the memory: it is not reused before that work is done. */
MOJO_API int32_t mojo_record_stream(void* data, int64_t stream);
MOJO_API int32_t mojo_pointer_device(const void* data); /* device index, or MOJO_HOST when it is not device memory */
MOJO_API int32_t mojo_memory_statistics(int32_t device, MojoMemoryStatistics* out);
MOJO_API int32_t mojo_reset_peak_statistics(int32_t device);
MOJO_API int32_t mojo_reset_accumulated_statistics(int32_t device);
MOJO_API int32_t mojo_empty_cache(int32_t device);
MOJO_API int32_t mojo_memory_info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);

MOJO_API int32_t mojo_pinned_allocate(int32_t device, uint64_t bytes, void** data);
MOJO_API void mojo_pinned_free(void* data);
MOJO_API int32_t mojo_is_pinned(const void* data); /* also true inside an allocation */

/* Copies on `stream` of the device that takes part (the destination's where both are devices: that stream must have
 * been made to wait for the source's). Devices may be MOJO_HOST. blocking != 0: done on return, and what failed in the
 * stream before is returned. blocking == 0: pinned host memory of that device is read or written when the stream gets
 * there; pageable sources are copied to a staging buffer first, or at once where nothing is queued; pageable
 * destinations block. */
MOJO_API int32_t mojo_copy(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                           uint64_t bytes, int64_t stream, int32_t blocking);

/* ---- streams and events -------------------------------------------------------------------------------------- */

MOJO_API int32_t mojo_stream_create(int32_t device, int32_t priority, int64_t* stream);
MOJO_API int32_t mojo_stream_query(int32_t device, int64_t stream, int32_t* done);
MOJO_API int32_t mojo_stream_synchronize(int32_t device, int64_t stream); /* also raises what failed in the queue */
MOJO_API int32_t mojo_device_synchronize(int32_t device);
/* The vendor's handle of a GPU stream; NULL on CPU devices and where there is none. */
MOJO_API void* mojo_stream_native_handle(int32_t device, int64_t stream);
MOJO_API int64_t mojo_stream_pending(int32_t device, int64_t stream); /* records that wait in the queue */
/* Queues a host function; it runs on the stream's thread, in order. */
MOJO_API int32_t mojo_stream_call(int32_t device, int64_t stream, void (*function)(void*), void* context);

MOJO_API int32_t mojo_event_create(int32_t device, int32_t timing, void** event);
MOJO_API void mojo_event_destroy(void* event);
MOJO_API int32_t mojo_event_record(void* event, int32_t device, int64_t stream);
MOJO_API int32_t mojo_event_wait(void* event, int32_t device, int64_t stream); /* the stream waits, not the host */
MOJO_API int32_t mojo_event_query(void* event, int32_t* done);                 /* never recorded: done */
MOJO_API int32_t mojo_event_synchronize(void* event);
/* MOJO_VALUE_ERROR without timing or never recorded, MOJO_RUNTIME_ERROR while not complete. */
MOJO_API int32_t mojo_event_elapsed(void* start, void* end, double* milliseconds);

/* ---- kernels ------------------------------------------------------------------------------------------------- */

/* One per KernelSpec and process: a place for the address of the compiled function. */
typedef struct MojoSlot MojoSlot;
enum MojoSlotState { MOJO_SLOT_EMPTY = 0, MOJO_SLOT_REQUESTED = 1, MOJO_SLOT_READY = 2, MOJO_SLOT_FAILED = 3 };

/* Finds or makes the slot of a KernelSpec's key, e.g. "mojo_kernels.pointwise.binary:binary[dtype=float32,op=add]". */
MOJO_API MojoSlot* mojo_slot(const char* key);
MOJO_API const char* mojo_slot_key(const MojoSlot* slot);
MOJO_API int32_t mojo_slot_state(const MojoSlot* slot);
/* Asks for the kernel without launching: from the index if it is there, else from the compile service. */
MOJO_API int32_t mojo_slot_request(MojoSlot* slot);
/* Blocks until READY or FAILED (then returns the failure). */
MOJO_API int32_t mojo_slot_wait(MojoSlot* slot);

/* Runs the kernel on the stream: at once where the kernel is ready and the queue empty (CPU default stream: on this
 * thread), else queued with its arguments copied. A failed compile fails here, and at the next synchronisation of a
 * stream that had launches queued behind it. */
MOJO_API int32_t mojo_launch(MojoSlot* slot, const MojoKernelCall* call, int32_t device, int64_t stream);
MOJO_API int64_t mojo_launch_count(void);

/* Runs a kernel at once, on this thread, for code that keeps no addresses, such as a compiled graph on disk. The site
 * is a text of three lines, which must not move while it is used: the key of a KernelSpec; the scalars' words,
 * separated by spaces; and how each of the kernel's tensors is made, separated by spaces, outputs first: .        the
 * next operand as it is, contiguous 1,0,x    the next operand's dimensions in this order; x is a new dimension of size
 * 1
 *   _        the next operand's one element, without dimensions
 *   -        an optional tensor that is not given
 * A * before one of the first three forms broadcasts the tensor to the sizes of the first output.
 * `operands` holds 16 words for each of `count` contiguous tensors: data, MojoDType, ndim, sizes. `device_context` as
 * in a MojoKernelCall. Waits for the kernel where it is not compiled yet. The message of a failure goes to `error`. */
MOJO_API int32_t mojo_call_site(const char* site, const int64_t* operands, int64_t count, void* device_context,
                                char* error, int64_t error_capacity);

/* The compile service's side. The index maps keys to compiled libraries; a first use that is in it needs no Python. */
MOJO_API int32_t mojo_index_add(const char* key, const char* library, const char* symbol);
MOJO_API void mojo_index_clear(void);
MOJO_API int64_t mojo_index_size(void);
/* Waits up to timeout for requested slots that the index does not have; writes them to `slots`, returns how many. */
MOJO_API int32_t mojo_next_requests(int32_t timeout_milliseconds, MojoSlot** slots, int32_t capacity);
MOJO_API void mojo_interrupt_requests(void); /* makes mojo_next_requests return at once */
MOJO_API int32_t mojo_slot_load(MojoSlot* slot, const char* library, const char* symbol);
MOJO_API void mojo_slot_fail(MojoSlot* slot, int32_t status, const char* message);
/* Back to EMPTY, e.g. after a failed build was mended. */
MOJO_API void mojo_slot_reset(MojoSlot* slot);

#ifdef __cplusplus
}
#endif
