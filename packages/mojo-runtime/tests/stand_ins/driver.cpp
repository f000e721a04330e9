// A GPU driver for tests: "devices" are host memory, streams are threads, so that the native core's GPU side runs on
// any machine. Kernels enqueue themselves, as on a GPU.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "kernel_abi.h"

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t kMemory = 1 << 30;

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;

  Stream() {
    std::thread([this] { work(); }).detach();
  }

  void enqueue(std::function<void()> function) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(function));
    changed.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !queue.empty(); });
      auto function = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      function();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = true;
  std::chrono::steady_clock::time_point time;
};

std::mutex memory_mutex;
std::unordered_map<void*, uint64_t> blocks;
uint64_t used = 0;
int64_t releases = 0;

int32_t fail(int32_t status, const char* message, char* error, int64_t capacity) {
  std::snprintf(error, capacity, "%s", message);
  return status;
}

}  // namespace

DRIVER int32_t mojo_driver_count() { return 1; }

DRIVER int32_t mojo_driver_properties(int32_t, char* name, int64_t capacity, int64_t* multiprocessors, int64_t* memory,
                                      char*, int64_t) {
  std::snprintf(name, capacity, "stand-in");
  *multiprocessors = 7;
  *memory = kMemory;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_open(int32_t, void** context, char*, int64_t) {
  *context = new Stream;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_allocate(void*, uint64_t bytes, void** handle, void** data, char* error, int64_t capacity) {
  std::lock_guard lock(memory_mutex);
  if (used + bytes > kMemory) return fail(MOJO_OUT_OF_MEMORY, "stand-in out of memory", error, capacity);
  *handle = *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  blocks[*data] = bytes;
  used += bytes;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_release(void*, void* handle, char*, int64_t) {
  std::lock_guard lock(memory_mutex);
  used -= blocks.at(handle);
  blocks.erase(handle);
  releases++;
  std::free(handle);
  return MOJO_OK;
}

DRIVER int64_t stand_in_used() {
  std::lock_guard lock(memory_mutex);
  return static_cast<int64_t>(used);
}

DRIVER int32_t mojo_driver_pinned_allocate(void*, uint64_t bytes, void** handle, void** data, char*, int64_t) {
  *handle = *data = std::aligned_alloc(4096, bytes);
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_pinned_release(void*, void* handle, char*, int64_t) {
  std::free(handle);
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_copy(void* stream, void* destination, const void* source, uint64_t bytes, int32_t, char*,
                                int64_t) {
  static_cast<Stream*>(stream)->enqueue([=] { std::memcpy(destination, source, bytes); });
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_stream_create(void*, int32_t, void** stream, char*, int64_t) {
  *stream = new Stream;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_stream_synchronize(void* stream, char*, int64_t) {
  static_cast<Stream*>(stream)->synchronize();
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_stream_native(void* stream, void** native, char*, int64_t) {
  *native = stream;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_create(void*, int32_t, void** event, char*, int64_t) {
  *event = new Event;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_destroy(void* event, char*, int64_t) {
  (void)event;  // kept: a queue may hold it
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_record(void* event, void* stream, char*, int64_t) {
  auto* recorded = static_cast<Event*>(event);
  {
    std::lock_guard lock(recorded->mutex);
    recorded->done = false;
  }
  static_cast<Stream*>(stream)->enqueue([recorded] {
    std::lock_guard lock(recorded->mutex);
    recorded->done = true;
    recorded->time = std::chrono::steady_clock::now();
    recorded->changed.notify_all();
  });
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_synchronize(void* event, char*, int64_t) {
  auto* waited = static_cast<Event*>(event);
  std::unique_lock lock(waited->mutex);
  waited->changed.wait(lock, [waited] { return waited->done; });
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_wait(void* event, void* stream, char*, int64_t) {
  static_cast<Stream*>(stream)->enqueue([event] { mojo_driver_event_synchronize(event, nullptr, 0); });
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_query(void* event, int32_t* done, char*, int64_t) {
  auto* asked = static_cast<Event*>(event);
  std::lock_guard lock(asked->mutex);
  *done = asked->done;
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_event_elapsed(void* start, void* end, double* milliseconds, char*, int64_t) {
  auto time = static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
  *milliseconds = std::chrono::duration<double, std::milli>(time).count();
  return MOJO_OK;
}

DRIVER int32_t mojo_driver_memory_info(void*, uint64_t* free_bytes, uint64_t* total_bytes, char*, int64_t) {
  *free_bytes = kMemory - stand_in_used();
  *total_bytes = kMemory;
  return MOJO_OK;
}

// out = in + 1 (float32, contiguous) on the stream, after scalar 0 milliseconds.
DRIVER int32_t gpu_add_one(MojoKernelCall* call) {
  auto* out = static_cast<float*>(call->tensors[0].data);
  auto* in = static_cast<float*>(call->tensors[1].data);
  int64_t numel = call->tensors[0].numel, milliseconds = call->scalars[0];
  static_cast<Stream*>(call->device_context)->enqueue([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    for (int64_t i = 0; i < numel; i++) out[i] = in[i] + 1;
  });
  return MOJO_OK;
}

// out[0] = scalar 0 (int64) with the kind of failure that a launch on a GPU has: at once.
DRIVER int32_t gpu_failing(MojoKernelCall* call) {
  return fail(MOJO_RUNTIME_ERROR, "launch failed", call->error, call->error_capacity);
}
