#include "common.h"

#include <ATen/EmptyTensor.h>

#include <vector>

namespace torch_mojo {

thread_local c10::DeviceIndex current_device = 0;
thread_local int64_t current_streams[kMaxDevices] = {};

namespace {
thread_local std::string entry_error;

std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;  // registrations live as long as the process
  return *handles;
}

c10::OperatorName operator_name(const std::string& name) {
  const auto dot = name.find('.');
  const std::string base = name.find("::") == std::string::npos ? "aten::" + name.substr(0, dot) : name.substr(0, dot);
  return {base, dot == std::string::npos ? "" : name.substr(dot + 1)};
}
}  // namespace

void throw_status(int32_t status, const char* message, const std::string& where) {
  std::string text = message;
  if (!where.empty()) text += " [aten::" + where + " on mojo]";
  switch (status) {
    case MOJO_NOT_IMPLEMENTED:
      C10_THROW_ERROR(NotImplementedError, text);
    case MOJO_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, text);
    case MOJO_INDEX_ERROR:
      C10_THROW_ERROR(IndexError, text);
    case MOJO_VALUE_ERROR:
      C10_THROW_ERROR(ValueError, text);
    case MOJO_TYPE_ERROR:
      C10_THROW_ERROR(TypeError, text);
    default:
      C10_THROW_ERROR(Error, text);
  }
}

void register_kernel(const std::string& name, c10::DispatchKey key, c10::KernelFunction kernel) {
  registrations().push_back(c10::Dispatcher::singleton().registerImpl(operator_name(name), key, std::move(kernel),
                                                                      std::nullopt, nullptr, "torch-mojo-eager"));
}

c10::OperatorHandle find_operator(const std::string& name) {
  const auto parts = operator_name(name);
  return c10::Dispatcher::singleton().findSchemaOrThrow(parts.name.c_str(), parts.overload_name.c_str());
}

at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::DeviceIndex device) {
  // An op that came here by another operand than the one that says where the result belongs.
  if (C10_UNLIKELY(device < 0)) throw_different_devices(c10::kCPU, c10::Device(kMojo, current_device), {});
  CurrentDevice guard(device);
  return at::detail::empty_generic(sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                   std::nullopt);
}

at::Tensor empty_like_meta(const at::Tensor& meta, c10::DeviceIndex device) {
  CurrentDevice guard(device);
  return at::detail::empty_strided_generic(meta.sizes(), meta.strides(), device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta.scalar_type());
}

void set_entry_error(const char* message) { entry_error = message; }

}  // namespace torch_mojo

TORCH_MOJO_API const char* torch_mojo_error() { return torch_mojo::entry_error.c_str(); }
