// Slots, the index of compiled kernels, requests for the compile service, launches.
#include "kernels.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "core.h"
#include "streams.h"
#include "thread_pool.h"

namespace mojo {

namespace {

struct KeyHash : std::hash<std::string_view> {
  using is_transparent = void;
};

struct IndexEntry {
  const std::string* library;  // in Registry::libraries
  std::string symbol;
};

struct Registry {
  std::shared_mutex slots_mutex;
  std::unordered_map<std::string, std::unique_ptr<MojoSlot>, KeyHash, std::equal_to<>> slots;

  std::shared_mutex index_mutex;
  std::unordered_map<std::string, IndexEntry, KeyHash, std::equal_to<>> index;
  std::set<std::string> libraries;

  std::mutex requests_mutex;
  std::condition_variable requested;
  std::deque<MojoSlot*> requests;
  bool interrupted = false;

  std::mutex failures_mutex;  // the failure fields of all slots
};

Registry& registry() {
  static Registry* instance = new Registry;  // workers may outlive static destructors
  return *instance;
}

std::atomic<int64_t> launches{0};

int32_t stored_failure(MojoSlot& slot) {
  std::lock_guard lock(registry().failures_mutex);
  return fail(slot.failure_status, slot.failure_message);
}

void set_state(MojoSlot& slot, int32_t state) {
  slot.state.store(state);
  slot.state.notify_all();
}

int32_t load(MojoSlot& slot, const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* address = handle == nullptr ? nullptr : dlsym(handle, symbol);
  if (address == nullptr) {
    const char* reason = dlerror();
    return fail(MOJO_RUNTIME_ERROR, "cannot load the kernel " + slot.key + ": " + (reason ? reason : "unknown reason"));
  }
  slot.kernel.store(reinterpret_cast<MojoKernel>(address), std::memory_order_release);
  set_state(slot, MOJO_SLOT_READY);
  return MOJO_OK;
}

bool load_from_index(MojoSlot& slot) {
  IndexEntry entry;
  {
    std::shared_lock lock(registry().index_mutex);
    auto found = registry().index.find(slot.key);
    if (found == registry().index.end()) return false;
    entry = found->second;
  }
  return load(slot, entry.library->c_str(), entry.symbol.c_str()) == MOJO_OK;
}

int32_t request(MojoSlot& slot) {
  int32_t state = MOJO_SLOT_EMPTY;
  if (!slot.state.compare_exchange_strong(state, MOJO_SLOT_REQUESTED))
    return state == MOJO_SLOT_FAILED ? stored_failure(slot) : MOJO_OK;
  // A library that cannot be loaded any more (deleted, truncated) is built again.
  if (load_from_index(slot)) return MOJO_OK;
  std::lock_guard lock(registry().requests_mutex);
  registry().requests.push_back(&slot);
  registry().requested.notify_one();
  return MOJO_OK;
}

int32_t wait(MojoSlot& slot) {
  while (true) {
    int32_t state = slot.state.load(std::memory_order_acquire);
    if (state == MOJO_SLOT_READY) return MOJO_OK;
    if (state == MOJO_SLOT_FAILED) return stored_failure(slot);
    if (state == MOJO_SLOT_EMPTY) {
      request(slot);
    } else {
      HostWait waiting;
      slot.state.wait(state);
    }
  }
}

// Fills in the runtime's fields of `call` and runs it for `stream` on this thread.
int32_t invoke(MojoSlot& slot, MojoKernel kernel, MojoKernelCall& call, Stream& stream) {
  char error[kErrorCapacity];
  error[0] = '\0';
  call.device_context = stream.context;
  call.parallel_for = mojo_parallel_for;
  call.threads = stream.context == nullptr ? mojo_threads() : 1;
  call.error = error;
  call.error_capacity = kErrorCapacity;
  int32_t status = kernel(&call);
  if (stream.context != nullptr) stream.enqueued();
  if (__builtin_expect(status == MOJO_OK, 1)) return MOJO_OK;
  error[kErrorCapacity - 1] = '\0';
  return fail(status, error[0] != '\0' ? error : "the kernel " + slot.key + " failed without a message");
}

// A queued launch; the tensors, sizes, strides and scalars follow it.
struct LaunchRecord : Record {
  MojoSlot* slot;
  MojoKernelCall call;
};

int32_t run_launch(Record* record, Stream& stream) {
  auto* launch = static_cast<LaunchRecord*>(record);
  MojoSlot& slot = *launch->slot;
  MojoKernel kernel = nullptr;
  while (kernel == nullptr) {  // again where the slot was reset meanwhile
    int32_t status = wait(slot);
    if (status != MOJO_OK) return status;
    kernel = slot.kernel.load(std::memory_order_acquire);
  }
  return invoke(slot, kernel, launch->call, stream);
}

size_t element_size(int32_t dtype) {
  switch (dtype) {
    case MOJO_UINT8:
    case MOJO_INT8:
    case MOJO_BOOL:
      return 1;
    case MOJO_INT16:
    case MOJO_FLOAT16:
    case MOJO_BFLOAT16:
    case MOJO_UINT16:
      return 2;
    case MOJO_INT32:
    case MOJO_FLOAT32:
    case MOJO_UINT32:
      return 4;
    case MOJO_COMPLEX128:
      return 16;
    default:
      return 8;
  }
}

constexpr size_t kHostScalarBytes = 16;

bool has_host_element(const MojoTensor& tensor) {
  return (tensor.flags & MOJO_HOST_SCALAR) != 0 && tensor.data != nullptr;
}

size_t copied_bytes(const MojoKernelCall& call) {
  size_t bytes = sizeof(LaunchRecord) + call.n_tensors * sizeof(MojoTensor) + call.n_scalars * sizeof(int64_t);
  for (int64_t i = 0; i < call.n_tensors; i++) {
    bytes += 2 * sizeof(int64_t) * call.tensors[i].ndim;
    if (has_host_element(call.tensors[i])) bytes += kHostScalarBytes;
  }
  return bytes;
}

// Copies the call behind the record. Host elements move along: inside the scalars where they pointed there, else each
// to a place of its own.
void copy_call(LaunchRecord& record, const MojoKernelCall& call) {
  auto* tensors = reinterpret_cast<MojoTensor*>(&record + 1);
  auto* words = reinterpret_cast<int64_t*>(tensors + call.n_tensors);
  record.call = call;
  record.call.tensors = tensors;
  record.call.scalars = words;
  if (call.n_scalars > 0) std::memcpy(words, call.scalars, call.n_scalars * sizeof(int64_t));
  const int64_t* scalars = words;
  words += call.n_scalars;
  const char* begin = reinterpret_cast<const char*>(call.scalars);
  const char* end = begin + call.n_scalars * sizeof(int64_t);
  for (int64_t i = 0; i < call.n_tensors; i++) {
    MojoTensor& tensor = tensors[i];
    tensor = call.tensors[i];
    size_t bytes = tensor.ndim * sizeof(int64_t);
    if (bytes > 0) {
      tensor.sizes = static_cast<int64_t*>(std::memcpy(words, tensor.sizes, bytes));
      words += tensor.ndim;
      tensor.strides = static_cast<int64_t*>(std::memcpy(words, tensor.strides, bytes));
      words += tensor.ndim;
    }
    if (!has_host_element(tensor)) continue;
    const char* element = static_cast<const char*>(tensor.data);
    if (element >= begin && element < end) {
      tensor.data = const_cast<char*>(reinterpret_cast<const char*>(scalars)) + (element - begin);
    } else {
      tensor.data = std::memcpy(words, element, element_size(tensor.dtype));
      words += kHostScalarBytes / sizeof(int64_t);
    }
  }
}

int32_t launch_queued(MojoSlot& slot, const MojoKernelCall& call, Stream& stream) {
  stream.push(copied_bytes(call), [&](Record* record) {
    auto& launch = *static_cast<LaunchRecord*>(record);
    launch.run = run_launch;
    launch.slot = &slot;
    copy_call(launch, call);
  });
  return MOJO_OK;
}

}  // namespace

}  // namespace mojo

using namespace mojo;

MojoSlot* mojo_slot(const char* key) {
  Registry& all = registry();
  std::string_view view(key);
  {
    std::shared_lock lock(all.slots_mutex);
    auto found = all.slots.find(view);
    if (found != all.slots.end()) return found->second.get();
  }
  std::unique_lock lock(all.slots_mutex);
  auto& slot = all.slots[std::string(view)];
  if (slot == nullptr) slot = std::make_unique<MojoSlot>(std::string(view));
  return slot.get();
}

const char* mojo_slot_key(const MojoSlot* slot) { return slot->key.c_str(); }

int32_t mojo_slot_state(const MojoSlot* slot) { return slot->state.load(std::memory_order_acquire); }

int32_t mojo_slot_request(MojoSlot* slot) { return core.forked.load() ? fail_device(0) : request(*slot); }

int32_t mojo_slot_wait(MojoSlot* slot) { return core.forked.load() ? fail_device(0) : wait(*slot); }

int32_t mojo_launch(MojoSlot* slot, const MojoKernelCall* call, int32_t device, int64_t stream) {
  Device* found = find_device(device);
  Stream* target = found == nullptr ? nullptr : find_stream(*found, stream);
  if (__builtin_expect(target == nullptr, 0)) {
    int32_t status = MOJO_OK;
    checked_stream(device, stream, &status);
    return status;
  }
  launches.fetch_add(1, std::memory_order_relaxed);
  MojoKernel kernel = slot->kernel.load(std::memory_order_acquire);
  if (__builtin_expect(kernel == nullptr, 0)) {
    int32_t status = request(*slot);
    if (status != MOJO_OK) return status;
    kernel = slot->kernel.load(std::memory_order_acquire);
  }
  if (__builtin_expect(kernel != nullptr && target->ready_inline(), 1)) {
    MojoKernelCall filled = *call;
    return invoke(*slot, kernel, filled, *target);
  }
  return launch_queued(*slot, *call, *target);
}

int64_t mojo_launch_count(void) { return launches.load(std::memory_order_relaxed); }

int32_t mojo_index_add(const char* key, const char* library, const char* symbol) {
  std::unique_lock lock(registry().index_mutex);
  registry().index[key] = IndexEntry{&*registry().libraries.insert(library).first, symbol};
  return MOJO_OK;
}

void mojo_index_clear(void) {
  std::unique_lock lock(registry().index_mutex);
  registry().index.clear();
}

int64_t mojo_index_size(void) {
  std::shared_lock lock(registry().index_mutex);
  return static_cast<int64_t>(registry().index.size());
}

int32_t mojo_next_requests(int32_t timeout_milliseconds, MojoSlot** slots, int32_t capacity) {
  Registry& all = registry();
  std::unique_lock lock(all.requests_mutex);
  all.requested.wait_for(lock, std::chrono::milliseconds(timeout_milliseconds),
                         [&] { return all.interrupted || !all.requests.empty(); });
  all.interrupted = false;
  int32_t count = 0;
  while (count < capacity && !all.requests.empty()) {
    slots[count++] = all.requests.front();
    all.requests.pop_front();
  }
  return count;
}

void mojo_interrupt_requests(void) {
  std::lock_guard lock(registry().requests_mutex);
  registry().interrupted = true;
  registry().requested.notify_all();
}

int32_t mojo_slot_load(MojoSlot* slot, const char* library, const char* symbol) { return load(*slot, library, symbol); }

void mojo_slot_fail(MojoSlot* slot, int32_t status, const char* message) {
  {
    std::lock_guard lock(registry().failures_mutex);
    slot->failure_status = status != MOJO_OK ? status : MOJO_RUNTIME_ERROR;
    slot->failure_message = message;
  }
  slot->kernel.store(nullptr);
  set_state(*slot, MOJO_SLOT_FAILED);
}

void mojo_slot_reset(MojoSlot* slot) {
  slot->kernel.store(nullptr);
  set_state(*slot, MOJO_SLOT_EMPTY);
}
