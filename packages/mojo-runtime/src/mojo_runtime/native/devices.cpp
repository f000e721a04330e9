// Initialization, the fork guard and error messages.
#include <pthread.h>

#include <mutex>

#include "core.h"
#include "memory.h"
#include "streams.h"
#include "thread_pool.h"

namespace mojo {

Core core;

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

std::mutex initialization;
MojoDriver driver_copy;

void after_fork_in_child() {
  // The threads and whatever locks they held are gone: nothing may be touched from here on.
  if (core.count > 0) {
    core.forked.store(true);
    core.usable.store(0);
  }
}

}  // namespace

int32_t fail(int32_t status, std::string message) {
  last_error() = std::move(message);
  return status;
}

int32_t fail_device(int32_t device) {
  if (core.forked.load())
    return fail(
        MOJO_RUNTIME_ERROR,
        "cannot use mojo devices in a forked process after they were initialized in its parent; start processes "
        "with the 'spawn' method: multiprocessing.get_context('spawn') or "
        "torch.multiprocessing.set_start_method('spawn')");
  if (core.count == 0)
    return fail(MOJO_RUNTIME_ERROR, "mojo-runtime is not initialized: call mojo_runtime.initialize()");
  return fail(MOJO_VALUE_ERROR, "invalid device index " + std::to_string(device) + ": there are " +
                                    std::to_string(core.count) + " mojo devices");
}

Stream* checked_stream(int32_t device, int64_t stream, int32_t* status) {
  Device* found = find_device(device);
  if (found == nullptr) {
    *status = fail_device(device);
    return nullptr;
  }
  Stream* result = find_stream(*found, stream);
  if (result == nullptr)
    *status = fail(MOJO_VALUE_ERROR, "invalid stream " + std::to_string(stream) + " of device " + found->name());
  return result;
}

std::string readable_bytes(uint64_t bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) {
    value /= 1024;
    unit++;
  }
  char text[32];
  snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace mojo

using namespace mojo;

const char* mojo_last_error(void) { return last_error().c_str(); }

void mojo_set_interpreter_lock(const MojoInterpreterLock* lock) { core.interpreter = *lock; }

int32_t mojo_initialize(const MojoDriver* driver, int32_t count, int32_t threads) {
  std::lock_guard lock(initialization);
  if (core.forked.load()) return fail_device(0);
  if (count < 1) return fail(MOJO_VALUE_ERROR, "mojo_initialize: at least one device is needed");
  if (core.count > 0) {
    if (count != core.count || (driver != nullptr) != on_gpu())
      return fail(MOJO_RUNTIME_ERROR, "mojo-runtime is already initialized with " + std::to_string(core.count) +
                                          (on_gpu() ? " GPU" : " CPU") + " device(s)");
    return MOJO_OK;
  }
  if (driver != nullptr) {
    driver_copy = *driver;
    core.driver = &driver_copy;
  }
  auto devices = std::make_unique<Device[]>(count);
  for (int32_t i = 0; i < count; i++) {
    Device& device = devices[i];
    device.index = i;
    if (driver != nullptr) {
      int32_t status = call_driver(driver->open, i, &device.context);
      if (status != MOJO_OK) {
        core.driver = nullptr;
        return status;
      }
    }
    device.streams = std::make_unique<std::atomic<Stream*>[]>(kMaximumStreams);
    device.allocator = new Allocator(device);
    device.streams[0].store(new Stream(device, 0, device.context));
    device.stream_count.store(1);
  }
  ThreadPool::instance().set_threads(threads > 0 ? threads : available_cores());
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  core.devices = devices.release();
  core.count = count;
  core.usable.store(count, std::memory_order_release);
  return MOJO_OK;
}

int32_t mojo_device_count(void) { return core.count; }
int32_t mojo_check_device(int32_t device) { return find_device(device) == nullptr ? fail_device(device) : MOJO_OK; }
int32_t mojo_is_cpu(void) { return !on_gpu(); }
int32_t mojo_in_bad_fork(void) { return core.forked.load(); }
