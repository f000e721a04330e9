#include "kernel_call.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <sstream>

namespace torch_mojo {

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Byte:
      return "uint8";
    case at::ScalarType::Char:
      return "int8";
    case at::ScalarType::Short:
      return "int16";
    case at::ScalarType::Int:
      return "int32";
    case at::ScalarType::Long:
      return "int64";
    case at::ScalarType::Half:
      return "float16";
    case at::ScalarType::Float:
      return "float32";
    case at::ScalarType::Double:
      return "float64";
    case at::ScalarType::ComplexFloat:
      return "complex64";
    case at::ScalarType::ComplexDouble:
      return "complex128";
    case at::ScalarType::Bool:
      return "bool";
    case at::ScalarType::BFloat16:
      return "bfloat16";
    case at::ScalarType::UInt16:
      return "uint16";
    case at::ScalarType::UInt32:
      return "uint32";
    case at::ScalarType::UInt64:
      return "uint64";
    default:
      return c10::toString(dtype);
  }
}

void throw_dtype_not_implemented(const std::string& op, const at::ScalarType* dtypes, size_t count) {
  std::string names;
  for (size_t i = 0; i < count; i++) names += (i ? ", " : "") + std::string(dtype_name(dtypes[i]));
  C10_THROW_ERROR(NotImplementedError, "aten::" + op + " is not implemented on mojo for dtype " + names +
                                           ". Convert the operands (`torch-mojo-backend ops` lists what each op "
                                           "takes), or run this op on the CPU with .cpu()");
}

// clang-format off
#define TORCH_MOJO_FORALL_REAL(_)                                                                                 \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int32_t, Int) _(int64_t, Long) _(c10::Half, Half)          \
  _(float, Float) _(double, Double) _(bool, Bool) _(c10::BFloat16, BFloat16) _(uint16_t, UInt16)                  \
  _(uint32_t, UInt32) _(uint64_t, UInt64)
// clang-format on

at::Scalar load_scalar(const void* data, at::ScalarType dtype) {
  switch (dtype) {
#define TORCH_MOJO_LOAD(type, name) \
  case at::ScalarType::name:        \
    return at::Scalar(*static_cast<const type*>(data));
    TORCH_MOJO_FORALL_REAL(TORCH_MOJO_LOAD)
    TORCH_MOJO_LOAD(c10::complex<float>, ComplexFloat)
    TORCH_MOJO_LOAD(c10::complex<double>, ComplexDouble)
#undef TORCH_MOJO_LOAD
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "mojo: cannot read a scalar of dtype ", dtype);
  }
}

void store_scalar(const at::Scalar& value, at::ScalarType dtype, void* destination) {
  switch (dtype) {
#define TORCH_MOJO_STORE(type, name)                     \
  case at::ScalarType::name:                             \
    *static_cast<type*>(destination) = value.to<type>(); \
    return;
    TORCH_MOJO_FORALL_REAL(TORCH_MOJO_STORE)
    TORCH_MOJO_STORE(c10::complex<float>, ComplexFloat)
#undef TORCH_MOJO_STORE
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "mojo: no scalar operands of dtype ", dtype);
  }
}

void convert_scalar(const at::Scalar& value, at::ScalarType dtype, void* destination) {
  if (value.isComplex() || value.type() == at::ScalarType::UInt64) return store_scalar(value, dtype, destination);
  switch (dtype) {
#define TORCH_MOJO_CONVERT(type, name)                                                                       \
  case at::ScalarType::name:                                                                                 \
    *static_cast<type*>(destination) =                                                                       \
        value.isFloatingPoint() ? c10::convert<type>(value.toDouble()) : c10::convert<type>(value.toLong()); \
    return;
    TORCH_MOJO_FORALL_REAL(TORCH_MOJO_CONVERT)
#undef TORCH_MOJO_CONVERT
    default:
      store_scalar(value, dtype, destination);
  }
}
#undef TORCH_MOJO_FORALL_REAL

bool holds_number(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType)
    return holds_number(*type.castRaw<c10::OptionalType>()->getElementType());
  return type.kind() == c10::TypeKind::NumberType;
}

void check_number(const at::Scalar& value, at::ScalarType dtype) {
  alignas(16) char ignored[16];
  store_scalar(value, c10::isReducedFloatingType(dtype) ? at::ScalarType::Float : dtype, ignored);
}

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::stringstream stream(names);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

MojoSlot* KernelFamily::resolve(const at::ScalarType* dtypes, size_t count) {
  uint64_t combination = 0;
  for (size_t i = 0; i < count; i++) combination = combination << 8 | static_cast<uint8_t>(dtypes[i]);
  std::lock_guard<std::mutex> lock(mutex_);
  MojoSlot*& slot = combinations_[combination];
  if (slot == nullptr) {
    const bool complex = dtypes[0] == at::ScalarType::ComplexFloat;
    std::string key = complex && !complex_key_.empty() ? complex_key_ : template_;
    for (size_t i = 0; i < count; i++) {
      const std::string placeholder = "{" + std::to_string(i) + "}";
      for (auto at = key.find(placeholder); at != std::string::npos; at = key.find(placeholder))
        key.replace(at, placeholder.size(),
                    dtypes[i] == at::ScalarType::ComplexFloat ? "uint64" : dtype_name(dtypes[i]));
    }
    slot = mojo_slot(key.c_str());
  }
  if (count == 1) slots_[static_cast<int>(*dtypes)].store(slot, std::memory_order_release);
  return slot;
}

void CallBuilder::scalar(const c10::IValue& value, const c10::Type& type) {
  const bool optional = type.kind() == c10::TypeKind::OptionalType;
  const c10::Type& inner = optional ? *type.castRaw<c10::OptionalType>()->getElementType() : type;
  const bool list = inner.kind() == c10::TypeKind::ListType;
  if (optional && !list) word(!value.isNone());
  if (value.isNone()) {
    if (list) word(0);
    return;
  }
  if (inner.kind() == c10::TypeKind::NumberType) return number(value.toScalar());
  if (value.isInt()) return word(value.toInt());
  if (value.isBool()) return word(value.toBool());
  if (value.isDouble()) return word(float_bits(value.toDouble()));
  if (value.isString()) {
    const std::string& text = value.toStringRef();
    int64_t first_bytes = 0;
    std::memcpy(&first_bytes, text.data(), std::min(text.size(), sizeof first_bytes));
    return word(first_bytes);
  }
  if (value.isIntList()) {
    const auto items = value.toIntList();
    word(static_cast<int64_t>(items.size()));
    for (const int64_t item : items) word(item);
    return;
  }
  if (value.isDoubleList()) {
    const auto items = value.toDoubleList();
    word(static_cast<int64_t>(items.size()));
    for (const double item : items) word(float_bits(item));
    return;
  }
  if (value.isBoolList()) {
    const auto items = value.toBoolList();
    word(static_cast<int64_t>(items.size()));
    for (const bool item : items) word(item);
    return;
  }
  if (value.isList()) {  // Scalar[]
    const auto items = value.toListRef();
    word(static_cast<int64_t>(items.size()));
    for (const auto& item : items) number(item.toScalar());
    return;
  }
  TORCH_CHECK(false, "mojo: cannot pass an argument of type ", type.str(), " to a kernel");
}

void CallBuilder::throw_devices(c10::DeviceIndex device, const std::string& op) const {
  const c10::Device first = device < 0 ? c10::Device(c10::kCPU) : c10::Device(kMojo, device);
  const c10::Device other = stray_ && *stray_ != first ? *stray_ : c10::Device(kMojo, device_ < 0 ? 0 : device_);
  throw_different_devices(first, other, op);
}

void throw_different_devices(c10::Device first, c10::Device second, const std::string& op) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", first, " and ",
              second, "! (when checking the arguments of ", op.empty() ? "an op" : "aten::" + op, ")");
}

void check_same_device(const at::TensorBase& tensor, c10::DeviceIndex device, const std::string& op) {
  if (tensor.device().type() == kMojo && tensor.device().index() == device) return;
  if (tensor.device().is_cpu() && tensor.dim() == 0) return;
  throw_different_devices(c10::Device(kMojo, device), tensor.device(), op);
}

}  // namespace torch_mojo
