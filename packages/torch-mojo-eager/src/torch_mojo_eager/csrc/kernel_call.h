// From torch's arguments to a MojoKernelCall, and from a dtype to the slot of a kernel.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common.h"

namespace torch_mojo {

constexpr int kDtypeCodes = 32;

// Masks of dtypes.
constexpr uint64_t kFloating =
    1 << static_cast<int>(at::ScalarType::Half) | 1 << static_cast<int>(at::ScalarType::Float) |
    1 << static_cast<int>(at::ScalarType::Double) | 1 << static_cast<int>(at::ScalarType::BFloat16);
constexpr uint64_t kNumeric = kFloating | 1 << static_cast<int>(at::ScalarType::Byte) |
                              1 << static_cast<int>(at::ScalarType::Char) |
                              1 << static_cast<int>(at::ScalarType::Short) |
                              1 << static_cast<int>(at::ScalarType::Int) | 1 << static_cast<int>(at::ScalarType::Long);

inline int64_t float_bits(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The kernels of one row: a key with placeholders {0}, {1} for dtypes, and a slot per combination, found on first use.
class KernelFamily {
 public:
  // masks[i]: bit c set where dtype code c may stand for placeholder i. `complex_key`: the key for complex64; where it
  // is empty, kernels move complex64 elements as uint64.
  KernelFamily(std::string key_template, std::vector<uint64_t> masks, std::string complex_key = "")
      : template_(std::move(key_template)), complex_key_(std::move(complex_key)), masks_(std::move(masks)) {
    for (auto& slot : slots_) slot.store(nullptr, std::memory_order_relaxed);
  }

  bool supports(at::ScalarType dtype, size_t placeholder = 0) const {
    return placeholder >= masks_.size() || (masks_[placeholder] >> static_cast<int>(dtype) & 1);
  }

  MojoSlot* slot(at::ScalarType dtype) {
    MojoSlot* found = slots_[static_cast<int>(dtype)].load(std::memory_order_acquire);
    return C10_LIKELY(found != nullptr) ? found : resolve(&dtype, 1);
  }

  MojoSlot* slot(const at::ScalarType* dtypes, size_t count) {
    return count == 1 ? slot(*dtypes) : resolve(dtypes, count);
  }

 private:
  MojoSlot* resolve(const at::ScalarType* dtypes, size_t count);

  std::string template_;
  std::string complex_key_;
  std::vector<uint64_t> masks_;
  std::array<std::atomic<MojoSlot*>, kDtypeCodes> slots_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, MojoSlot*> combinations_;
};

// torch.float32 -> "float32"
const char* dtype_name(at::ScalarType dtype);
[[noreturn]] void throw_dtype_not_implemented(const std::string& op, const at::ScalarType* dtypes, size_t count);

// A borrowed view for the duration of a call.
inline MojoTensor view_of(const at::TensorBase& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  MojoTensor view;
  view.numel = impl->numel();
  view.data = view.numel == 0 ? nullptr
                              : static_cast<char*>(const_cast<void*>(impl->storage().data())) +
                                    impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
  view.sizes = impl->sizes().data();
  view.strides = impl->strides().data();
  view.dtype = static_cast<int32_t>(c10::typeMetaToScalarType(impl->dtype()));
  view.ndim = static_cast<int16_t>(impl->sizes().size());
  view.flags = impl->device_type() == c10::DeviceType::CPU ? MOJO_HOST_SCALAR : 0;
  return view;
}

// Collects tensors and scalars of one launch without heap allocation for ordinary ops.
class CallBuilder {
 public:
  void add(const at::TensorBase& tensor) {
    tensors_.push_back(view_of(tensor));
    const c10::Device device = tensor.device();
    if (C10_LIKELY(device.type() == kMojo)) {
      if (device_ < 0) device_ = device.index();
      if (C10_UNLIKELY(device_ != device.index())) stray_ = device;
    } else if (tensor.dim() > 0 || !device.is_cpu()) {
      stray_ = device;
    }
  }
  // The caller has checked the device.
  void add(const MojoTensor& view) { tensors_.push_back(view); }
  void add_absent() {
    MojoTensor view{};
    view.flags = MOJO_ABSENT;
    tensors_.push_back(view);
  }
  void word(int64_t value) { scalars_.push_back(value); }
  void number(const at::Scalar& value) {
    const bool floating = value.isFloatingPoint();
    // Out-of-range doubles have no int64 value; kernels of floating dtypes read the second word.
    word(floating ? static_cast<int64_t>(std::abs(value.toDouble()) < 9.2e18 ? value.toDouble() : 0)
                  : (value.isBoolean() ? value.toBool() : value.toLong()));
    word(float_bits(value.toDouble()));
  }
  // A number for a kernel of complex64: the bits of the imaginary part, then of the real part.
  void complex_number(const at::Scalar& value) {
    const c10::complex<double> number = value.toComplexDouble();
    word(float_bits(number.imag()));
    word(float_bits(number.real()));
  }
  // Encodes an argument as docs/architecture.md says; `type` is the schema's.
  void scalar(const c10::IValue& value, const c10::Type& type);

  void launch(MojoSlot* slot, c10::DeviceIndex device, const std::string& op) {
    if (C10_UNLIKELY(stray_ || device < 0 || (device_ >= 0 && device_ != device))) throw_devices(device, op);
    MojoKernelCall call{};
    call.tensors = tensors_.data();
    call.n_tensors = static_cast<int64_t>(tensors_.size());
    call.scalars = scalars_.data();
    call.n_scalars = static_cast<int64_t>(scalars_.size());
    const int32_t status = mojo_launch(slot, &call, device, current_stream(device));
    if (C10_UNLIKELY(status != MOJO_OK)) throw_status(status, mojo_last_error(), op);
  }

 private:
  [[noreturn]] void throw_devices(c10::DeviceIndex device, const std::string& op) const;

  c10::SmallVector<MojoTensor, 8> tensors_;
  c10::SmallVector<int64_t, 16> scalars_;
  c10::DeviceIndex device_ = -1;      // of the first mojo tensor
  std::optional<c10::Device> stray_;  // of a tensor that is neither there nor a 0-dim CPU tensor
};

// The value of one element in host memory, and the way back (at most 8 bytes), which throws where the dtype's range
// does not hold it.
at::Scalar load_scalar(const void* data, at::ScalarType dtype);
void store_scalar(const at::Scalar& value, at::ScalarType dtype, void* destination);

// The way back as tensors are converted, for operands of promoting ops: what is out of range becomes infinite or wraps.
void convert_scalar(const at::Scalar& value, at::ScalarType dtype, void* destination);

// Whether an argument's type is Scalar or Scalar?.
bool holds_number(const c10::Type& type);

// Throws torch's error where a number that an op reads in its dtype is out of range; half types compute in float32.
void check_number(const at::Scalar& value, at::ScalarType dtype);

// "a,b" -> {"a", "b"}
std::vector<std::string> split(const std::string& names);

// Calls `visit` on every defined tensor of an argument: a tensor, an optional one, or a list of either.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
  }
}

// Throws torch's message where a tensor is neither on `device` nor a 0-dim CPU tensor. Launches check what is added to
// them; this is for who needs to know before.
void check_same_device(const at::TensorBase& tensor, c10::DeviceIndex device, const std::string& op);

}  // namespace torch_mojo
