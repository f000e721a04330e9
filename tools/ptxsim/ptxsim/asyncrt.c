/* A stand-in for the device half of Mojo's AsyncRT library.
 *
 * Loaded with RTLD_GLOBAL before a Mojo library that was built for an NVIDIA GPU, its symbols come first: the library's
 * DeviceContext loads its PTX into, allocates from, and launches on the callbacks that asyncrt.py sets. Everything
 * happens at once: streams are in order by nature, events are complete when they are recorded.
 *
 * The interface is private to a Mojo release (this is 1.2). Functions return NULL or a message that strfree frees.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  int64_t (*load)(const char* name, const char* ptx, size_t length);
  const char* (*launch)(int64_t function, const uint32_t* dimensions, uint32_t shared, void** arguments,
                        uint64_t count);
  uint64_t (*allocate)(size_t bytes);
  void (*release)(uint64_t address);
  const char* (*copy)(void* destination, const void* source, size_t bytes, int kind);
  const char* (*fill)(void* destination, uint64_t value, size_t value_bytes, size_t bytes);
  void (*memory)(size_t* free_bytes, size_t* total_bytes);
} Callbacks;

enum CopyKind { HOST_TO_DEVICE = 0, DEVICE_TO_HOST = 1, DEVICE_TO_DEVICE = 2 };
enum BufferKind { DEVICE = 0, HOST = 1, VIEW = 2 };

typedef struct {
  int64_t references;
} Counted;
typedef struct {
  Counted counted;
  int64_t id;
} Context;
typedef struct {
  Counted counted;
  Context* context;
  char* data;
  size_t bytes;
  int kind;
} Buffer;
typedef struct {
  Counted counted;
  int64_t id;
} Function;
typedef struct {
  Counted counted;
} Stream;
typedef struct {
  Counted counted;
  struct timespec recorded;
} Event;
typedef struct {
  const char* data;
  size_t length;
} Text;

static Callbacks callbacks;
static Context the_context = {{1}, 0};
static Stream the_stream = {{1}};
static int32_t stream_count = 1;

void ptxsim_set_callbacks(const Callbacks* value) { callbacks = *value; }
void* ptxsim_context(void) { return &the_context; }

static char* failure(const char* message) { return message ? strdup(message) : NULL; }
static void retain(void* object) { ++((Counted*)object)->references; }
static bool release(void* object) { return object && --((Counted*)object)->references == 0; }
static void* create(size_t bytes) {
  Counted* object = calloc(1, bytes);
  object->references = 1;
  return object;
}

/* ---- contexts ---- */

char* AsyncRT_DeviceContext_create(void** result, const char* api, int id) {
  (void)api;
  if (id > 0) return failure("the simulator has one device, number 0");
  retain(&the_context);
  *result = &the_context;
  return NULL;
}
int32_t AsyncRT_DeviceContext_numberOfDevices(const char* api) {
  return strcmp(api, "cuda") == 0 || strcmp(api, "gpu") == 0;
}
void AsyncRT_DeviceContext_retain(void* context) { retain(context); }
void AsyncRT_DeviceContext_release(void* context) { release(context); }
int64_t AsyncRT_DeviceContext_id(Context* context) { return context->id; }
void AsyncRT_DeviceContext_deviceApi(Text* result, void* context) {
  (void)context;
  result->data = "cuda";
  result->length = 4;
}
char* AsyncRT_DeviceContext_deviceName(void* context) {
  (void)context;
  return strdup("NVIDIA A100");
}
char* AsyncRT_DeviceContext_computeCapability(int32_t* result, void* context) {
  (void)context;
  *result = 80;
  return NULL;
}
/* CUdevice_attribute: what launch code asks for; an A100's values. */
char* AsyncRT_DeviceContext_getAttribute(int32_t* result, void* context, int32_t attribute) {
  (void)context;
  switch (attribute) {
    case 1:
      *result = 1024;
      return NULL; /* threads per block */
    case 5:
      *result = 65535;
      return NULL; /* grid y */
    case 8:
      *result = 48 << 10;
      return NULL; /* shared memory per block */
    case 10:
      *result = 32;
      return NULL; /* warp */
    case 12:
      *result = 65536;
      return NULL; /* registers per block */
    case 13:
      *result = 1410000;
      return NULL; /* clock, kHz */
    case 16:
      *result = 108;
      return NULL; /* multiprocessors */
    case 39:
      *result = 2048;
      return NULL; /* threads per multiprocessor */
    case 75:
      *result = 8;
      return NULL; /* compute capability, major */
    case 76:
      *result = 0;
      return NULL; /* and minor */
    case 81:
      *result = 164 << 10;
      return NULL; /* shared memory per multiprocessor */
    case 97:
      *result = 163 << 10;
      return NULL; /* shared memory per block, opted in */
    case 106:
      *result = 32;
      return NULL; /* blocks per multiprocessor */
    default:
      return failure("the simulator does not know this device attribute");
  }
}
char* AsyncRT_DeviceContext_getMemoryInfo(void* context, size_t* free_bytes, size_t* total_bytes) {
  (void)context;
  callbacks.memory(free_bytes, total_bytes);
  return NULL;
}
void AsyncRT_DeviceContext_strfree(char* text) { free(text); }
char* AsyncRT_DeviceContext_synchronize(void* context) {
  (void)context;
  return NULL;
}
char* AsyncRT_DeviceContext_setAsCurrent(void* context) {
  (void)context;
  return NULL;
}
char* AsyncRT_DeviceContext_isCompatible(void* context) {
  (void)context;
  return NULL;
}
char* AsyncRT_DeviceContext_enqueue_wait_for_context(void* context, void* other) {
  (void)context, (void)other;
  return NULL;
}
char* AsyncRT_DeviceContextScope_create(void** result, void* context) {
  *result = context;
  return NULL;
}
void AsyncRT_DeviceContextScope_release(void* scope) { (void)scope; }
void* AsyncRT_KernelLoadGate_beginLoad(void* context) {
  (void)context;
  return NULL;
}
void AsyncRT_KernelLoadGate_endLoad(void* gate) { (void)gate; }

/* ---- kernels ---- */

char* AsyncRT_DeviceContext_loadFunction(void** result, void* context, const char* module, const char* name,
                                         const char* ptx, size_t length, int32_t max_registers, const char* debug,
                                         int32_t optimization) {
  (void)context, (void)module, (void)max_registers, (void)debug, (void)optimization;
  int64_t id = callbacks.load(name, ptx, length);
  if (id < 0) return failure("the simulator cannot load the kernel");
  Function* function = create(sizeof *function);
  function->id = id;
  *result = function;
  return NULL;
}
void AsyncRT_DeviceFunction_retain(void* function) { retain(function); }
void AsyncRT_DeviceFunction_release(void* function) {
  if (release(function)) free(function);
}
char* AsyncRT_DeviceContext_enqueueFunctionDirect(void* context, Function* function, uint32_t grid_x, uint32_t grid_y,
                                                  uint32_t grid_z, uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                                  uint32_t shared, void* attributes, uint32_t attribute_count,
                                                  void** arguments, uint64_t count, const uint64_t* sizes) {
  (void)context, (void)attributes, (void)attribute_count, (void)sizes;
  uint32_t dimensions[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  return failure(callbacks.launch(function->id, dimensions, shared, arguments, count));
}
char* AsyncRT_DeviceStream_enqueueFunctionDirect(void* stream, Function* function, uint32_t grid_x, uint32_t grid_y,
                                                 uint32_t grid_z, uint32_t block_x, uint32_t block_y, uint32_t block_z,
                                                 uint32_t shared, void* attributes, uint32_t attribute_count,
                                                 void** arguments, uint64_t count, const uint64_t* sizes) {
  return AsyncRT_DeviceContext_enqueueFunctionDirect(stream, function, grid_x, grid_y, grid_z, block_x, block_y,
                                                     block_z, shared, attributes, attribute_count, arguments, count,
                                                     sizes);
}

/* ---- memory ---- */

static Buffer* buffer(Context* context, char* data, size_t bytes, int kind) {
  Buffer* result = create(sizeof *result);
  result->context = context;
  result->data = data;
  result->bytes = bytes;
  result->kind = kind;
  return result;
}
char* AsyncRT_DeviceContext_createBuffer_async(void** result, void** data, void* context, size_t length,
                                               size_t element_bytes) {
  uint64_t address = callbacks.allocate(length * element_bytes);
  if (!address) return failure("CUDA_ERROR_OUT_OF_MEMORY (out of memory): the simulated device memory is full");
  *data = (void*)address;
  *result = buffer(context, *data, length * element_bytes, DEVICE);
  return NULL;
}
char* AsyncRT_DeviceContext_createHostBuffer(void** result, void** data, void* context, size_t length,
                                             size_t element_bytes) {
  *data = malloc(length * element_bytes + 1);
  *result = buffer(context, *data, length * element_bytes, HOST);
  return NULL;
}
/* A view of existing memory, also where `owning` asks for more: releasing it frees nothing. */
void AsyncRT_DeviceContext_createBuffer_owning(void** result, void* context, void* data, size_t length,
                                               size_t element_bytes, int owning) {
  (void)owning;
  *result = buffer(context, data, length * element_bytes, VIEW);
}
char* AsyncRT_DeviceBuffer_createSubBuffer(void** result, void** data, Buffer* parent, size_t offset, size_t length,
                                           size_t element_bytes) {
  *data = parent->data + offset * element_bytes;
  *result = buffer(parent->context, *data, length * element_bytes, VIEW);
  return NULL;
}
void AsyncRT_DeviceBuffer_retain(void* object) { retain(object); }
void AsyncRT_DeviceBuffer_release(Buffer* object) {
  if (!release(object)) return;
  if (object->kind == DEVICE) callbacks.release((uint64_t)object->data);
  if (object->kind == HOST) free(object->data);
  free(object);
}
int64_t AsyncRT_DeviceBuffer_bytesize(Buffer* object) { return object->bytes; }
void* AsyncRT_DeviceBuffer_context(Buffer* object) { return object->context; }
char* AsyncRT_DeviceContext_HtoD_async(void* context, Buffer* destination, const void* source) {
  (void)context;
  return failure(callbacks.copy(destination->data, source, destination->bytes, HOST_TO_DEVICE));
}
char* AsyncRT_DeviceContext_DtoH_async(void* context, void* destination, Buffer* source) {
  (void)context;
  return failure(callbacks.copy(destination, source->data, source->bytes, DEVICE_TO_HOST));
}
char* AsyncRT_DeviceContext_HtoD_async_sized(void* context, Buffer* destination, const void* source, size_t bytes) {
  (void)context;
  return failure(callbacks.copy(destination->data, source, bytes, HOST_TO_DEVICE));
}
char* AsyncRT_DeviceContext_DtoH_async_sized(void* context, void* destination, Buffer* source, size_t bytes) {
  (void)context;
  return failure(callbacks.copy(destination, source->data, bytes, DEVICE_TO_HOST));
}
char* AsyncRT_DeviceContext_DtoD_async(void* context, Buffer* destination, Buffer* source) {
  (void)context;
  return failure(callbacks.copy(destination->data, source->data, source->bytes, DEVICE_TO_DEVICE));
}
char* AsyncRT_DeviceContext_DtoD_async_no_cross_stream_sync(void* context, Buffer* destination, Buffer* source) {
  return AsyncRT_DeviceContext_DtoD_async(context, destination, source);
}
char* AsyncRT_DeviceContext_setMemory_async(void* context, Buffer* destination, uint64_t value, size_t value_bytes) {
  (void)context;
  return failure(callbacks.fill(destination->data, value, value_bytes, destination->bytes));
}

/* ---- streams and events ---- */

char* AsyncRT_DeviceContext_stream(void** result, void* context) {
  (void)context;
  retain(&the_stream);
  *result = &the_stream;
  return NULL;
}
char* AsyncRT_DeviceContext_createStream(void** result, int priority, void* context) {
  (void)priority, (void)context;
  *result = create(sizeof(Stream));
  ++stream_count;
  return NULL;
}
int32_t AsyncRT_DeviceContext_numStreams(void* context) {
  (void)context;
  return stream_count;
}
/* A view of the context on another stream; its kernels run in order all the same. */
char* AsyncRT_DeviceContext_selectStream(void** result, void* context, uint32_t stream) {
  (void)context;
  if (stream >= (uint32_t)stream_count) return failure("the simulated device has no such stream");
  *result = create(sizeof(Context));
  return NULL;
}
char* AsyncRT_DeviceStream_cuda_stream(void** result, void* stream) {
  *result = stream;
  return NULL;
}
char* AsyncRT_DeviceStream_hip_stream(void** result, void* stream) {
  (void)result, (void)stream;
  return failure("the simulated device is not AMD's");
}
char* AsyncRT_DeviceContext_streamPriorityRange(int* least, int* greatest, void* context) {
  (void)context;
  *least = 0;
  *greatest = -5;
  return NULL;
}
void AsyncRT_DeviceStream_retain(void* stream) { retain(stream); }
void AsyncRT_DeviceStream_release(void* stream) {
  if (release(stream) && stream != &the_stream) free(stream);
}
char* AsyncRT_DeviceStream_synchronize(void* stream) {
  (void)stream;
  return NULL;
}
char* AsyncRT_DeviceStream_enqueueHostFunc(void* stream, void (*function)(void*), void* data) {
  (void)stream;
  function(data);
  return NULL;
}
char* AsyncRT_DeviceContext_eventCreate(void** result, void* context, unsigned flags) {
  (void)context, (void)flags;
  *result = create(sizeof(Event));
  return NULL;
}
void AsyncRT_DeviceEvent_retain(void* event) { retain(event); }
void AsyncRT_DeviceEvent_release(void* event) {
  if (release(event)) free(event);
}
char* AsyncRT_DeviceEvent_synchronize(void* event) {
  (void)event;
  return NULL;
}
char* AsyncRT_DeviceStream_eventRecord(void* stream, Event* event) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  return NULL;
}
char* AsyncRT_DeviceStream_waitForEvent(void* stream, void* event) {
  (void)stream, (void)event;
  return NULL;
}
char* AsyncRT_DeviceContext_waitForEvent(void* context, void* event) {
  (void)context, (void)event;
  return NULL;
}
