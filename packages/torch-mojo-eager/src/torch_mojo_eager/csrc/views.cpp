// Factories, views and metadata ops, served by torch's own native functions.
#include <ATen/EmptyTensor.h>
#include <c10/core/TensorOptions.h>

#include "common.h"

// Declared here because the generated headers cost ten seconds of compile time; the names are torch's exported ones.
namespace at::native {
TORCH_API at::Tensor view(const at::Tensor&, at::IntArrayRef);
TORCH_API at::Tensor as_strided_tensorimpl(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::optional<int64_t>);
TORCH_API at::Tensor _reshape_alias(const at::Tensor&, at::IntArrayRef, at::IntArrayRef);
TORCH_API at::Tensor view_as_real(const at::Tensor&);
TORCH_API at::Tensor view_as_complex(const at::Tensor&);
TORCH_API at::Tensor unfold(const at::Tensor&, int64_t, int64_t, int64_t);
TORCH_API at::Tensor& set_tensor_(at::Tensor&, const at::Tensor&);
TORCH_API at::Tensor& set_(at::Tensor&, at::Storage);
TORCH_API at::Tensor& set_storage_cpu_(at::Tensor&, at::Storage, int64_t, at::IntArrayRef, at::IntArrayRef);
}  // namespace at::native

namespace torch_mojo {
namespace {

c10::DeviceIndex check_options(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::Layout::Strided, "mojo: tensors of layout ", *layout,
                              " are not implemented, only strided ones");
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
  if (!device || !device->has_index()) return current_device;
  if (device->index() != current_device && (device->index() < 0 || device->index() >= mojo_device_count()))
    c10::impl::getDeviceGuardImpl(kMojo)->setDevice(*device);  // throws
  return device->index();
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  CurrentDevice guard(check_options(layout, device, pin_memory));
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype), memory_format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  CurrentDevice guard(check_options(layout, device, pin_memory));
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

// What ZeroTensors allocate: nothing.
struct NoMemory final : c10::Allocator {
  explicit NoMemory(c10::DeviceIndex index) : device(kMojo, index) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, nullptr, &release, device}; }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override {}
  static void release(void*) {}
  c10::Device device;
};

// Zeros without memory, which torch's formulas for gradients use; its fallback makes them real where an op reads them.
at::Tensor efficient_zero_tensor(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                 std::optional<bool> pin_memory) {
  NoMemory allocator(check_options(layout, device, pin_memory));
  constexpr auto keys = kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// torch's own functions would reallocate on the current device and copy on the host, while work is queued.
void grow(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() < bytes) resize_storage(storage, bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    impl->set_sizes_contiguous(sizes);
    if (impl->numel() > 0)
      grow(self.storage(), at::detail::computeStorageNbytesContiguous(sizes, impl->itemsize(), impl->storage_offset()));
  }
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  if (storage.device().type() == kMojo && offset >= 0 && (strides.empty() || strides.size() == sizes.size()))
    grow(storage, strides.empty() ? at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), offset)
                                  : at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), offset));
  return at::native::set_storage_cpu_(self, std::move(storage), offset, sizes, strides);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  if (self.numel() != 0) check_status(mojo_record_stream(self.storage().mutable_data(), stream.id()));
}

// Whether `self.data = from` may keep the Python object. torch says no for devices of extensions unless they say yes;
// then Module.to would make new Parameters, which unties shared weights and leaves optimizers with the old ones.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  return self.layout() == c10::kStrided && from.layout() == c10::kStrided &&
         (self.is_cpu() || self.is_privateuseone()) && (from.is_cpu() || from.is_privateuseone());
}

}  // namespace

void register_views() {
  const auto key = c10::DispatchKey::PrivateUse1;
#define TORCH_MOJO_KERNEL(function) c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function))
  register_kernel("empty.memory_format", key, TORCH_MOJO_KERNEL(empty_memory_format));
  register_kernel("empty_strided", key, TORCH_MOJO_KERNEL(empty_strided));
  register_kernel("_efficientzerotensor", key, TORCH_MOJO_KERNEL(efficient_zero_tensor));
  register_kernel("record_stream", key, TORCH_MOJO_KERNEL(record_stream));
  register_kernel("_has_compatible_shallow_copy_type", key, TORCH_MOJO_KERNEL(has_compatible_shallow_copy_type));
  register_kernel("as_strided", key, TORCH_MOJO_KERNEL(at::native::as_strided_tensorimpl));
  register_kernel("view", key, TORCH_MOJO_KERNEL(at::native::view));
  register_kernel("_reshape_alias", key, TORCH_MOJO_KERNEL(at::native::_reshape_alias));
  register_kernel("view_as_real", key, TORCH_MOJO_KERNEL(at::native::view_as_real));
  register_kernel("view_as_complex", key, TORCH_MOJO_KERNEL(at::native::view_as_complex));
  register_kernel("unfold", key, TORCH_MOJO_KERNEL(at::native::unfold));
  register_kernel("resize_", key, TORCH_MOJO_KERNEL(resize));
  register_kernel("set_.source_Tensor", key, TORCH_MOJO_KERNEL(at::native::set_tensor_));
  register_kernel("set_.source_Storage", key, TORCH_MOJO_KERNEL(at::native::set_));
  register_kernel("set_.source_Storage_storage_offset", key, TORCH_MOJO_KERNEL(set_storage));
#undef TORCH_MOJO_KERNEL
}

}  // namespace torch_mojo
