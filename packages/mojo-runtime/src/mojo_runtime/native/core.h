// What the files of the native core share: errors, devices, the table of streams. Internal to libmojo_runtime.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "mojo_runtime.h"

namespace mojo {

class Allocator;
class Stream;

inline constexpr int64_t kErrorCapacity = 2048;
inline constexpr int64_t kMaximumStreams = 1 << 16;

// Stores this thread's message for mojo_last_error() and returns `status`.
int32_t fail(int32_t status, std::string message);

struct Device {
  int32_t index = 0;
  void* context = nullptr;  // the driver's; NULL on CPU devices
  std::atomic<int64_t> stream_count{0};
  std::unique_ptr<std::atomic<Stream*>[]> streams;  // [kMaximumStreams], never destroyed
  Allocator* allocator = nullptr;

  std::string name() const { return "mojo:" + std::to_string(index); }
};

// Read on every launch. `usable` is 0 before mojo_initialize and in a forked child, so that the bounds check of a
// device index is also the check for both.
struct Core {
  std::atomic<int32_t> usable{0};
  int32_t count = 0;
  Device* devices = nullptr;
  const MojoDriver* driver = nullptr;
  std::atomic<bool> forked{false};
  MojoInterpreterLock interpreter{};
};
extern Core core;

// Gives the interpreter's lock back while this thread waits. Made with no mutex held, since taking the lock again may
// take a while.
class HostWait {
 public:
  HostWait() {
    if (core.interpreter.held != nullptr && core.interpreter.held() != 0) released_ = core.interpreter.release();
  }
  ~HostWait() {
    if (released_ != nullptr) core.interpreter.acquire(released_);
  }
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  void* released_ = nullptr;
};

inline bool on_gpu() { return core.driver != nullptr; }

// Says why `device` cannot be used: not initialized, forked or out of range.
int32_t fail_device(int32_t device);

inline Device* find_device(int32_t device) {
  return static_cast<uint32_t>(device) < static_cast<uint32_t>(core.usable.load(std::memory_order_acquire))
             ? &core.devices[device]
             : nullptr;
}

inline Stream* find_stream(Device& device, int64_t stream) {
  return static_cast<uint64_t>(stream) < static_cast<uint64_t>(kMaximumStreams)
             ? device.streams[stream].load(std::memory_order_acquire)
             : nullptr;
}

// The stream, or NULL with the status in `*status` and this thread's message set.
Stream* checked_stream(int32_t device, int64_t stream, int32_t* status);

// Calls a function of the driver with an error buffer behind its arguments.
template <typename Function, typename... Arguments>
int32_t call_driver(Function function, Arguments... arguments) {
  char error[kErrorCapacity];
  error[0] = '\0';
  int32_t status = function(arguments..., error, kErrorCapacity);
  return status == MOJO_OK ? MOJO_OK : fail(status, error);
}

// "1.50 GiB".
std::string readable_bytes(uint64_t bytes);

}  // namespace mojo
