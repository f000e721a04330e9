// What every file of the shim shares: the current device and streams, errors, registration.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <mojo_runtime.h>

#include <optional>
#include <string>
#include <vector>

#define TORCH_MOJO_API extern "C" __attribute__((visibility("default")))

namespace torch_mojo {

constexpr int kMaxDevices = 64;
constexpr auto kMojo = c10::DeviceType::PrivateUse1;

// Plain thread-locals: the current device and stream are read on every op.
extern thread_local c10::DeviceIndex current_device;
extern thread_local int64_t current_streams[kMaxDevices];

inline int64_t current_stream(int device) { return current_streams[device]; }

// Throws the C++ exception that becomes the Python exception of the status; `where` names the op, or is empty.
[[noreturn]] void throw_status(int32_t status, const char* message, const std::string& where);

inline void check_status(int32_t status, const std::string& where = {}) {
  if (C10_UNLIKELY(status != MOJO_OK)) throw_status(status, mojo_last_error(), where);
}

[[noreturn]] void throw_different_devices(c10::Device first, c10::Device second, const std::string& op);

// Makes `device` current for a scope. Unlike c10::DeviceGuard there is no virtual call.
class CurrentDevice {
 public:
  explicit CurrentDevice(c10::DeviceIndex device) : previous_(current_device) { current_device = device; }
  ~CurrentDevice() { current_device = previous_; }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  c10::DeviceIndex previous_;
};

c10::Allocator* device_allocator();
// Gives a storage new memory of its device, with what it held so far, in the order of the current stream.
void resize_storage(const c10::Storage& storage, size_t bytes);
at::Generator default_generator(int64_t device);
// Reserves `increment` draws per thread of the default generator, or another; returns {seed, offset} before.
std::vector<int64_t> philox_state(const std::optional<at::Generator>& generator, int64_t device, int64_t increment);

// Registers a kernel for the life of the process; `name` is an overload such as "add.out".
void register_kernel(const std::string& name, c10::DispatchKey key, c10::KernelFunction kernel);
c10::OperatorHandle find_operator(const std::string& name);

// Allocates on `device`, which must be a mojo device.
at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::DeviceIndex device);
// With the sizes, strides and dtype of a meta tensor.
at::Tensor empty_like_meta(const at::Tensor& meta, c10::DeviceIndex device);
inline at::Tensor empty_like_contiguous(const at::Tensor& t) {
  return empty(t.sizes(), t.scalar_type(), t.device().index());
}

// Runs a C entry point's body; a C++ exception becomes a message that Python reads with torch_mojo_error().
template <class Body>
int32_t shield(Body&& body) noexcept;
void set_entry_error(const char* message);

template <class Body>
int32_t shield(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    set_entry_error(e.what());
    return 1;
  }
}

}  // namespace torch_mojo
