// Autocast for the device: which ops, with which policy, comes from Python (torch_mojo_eager/autocast.py).
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "kernel_call.h"

namespace at::autocast {
TORCH_API at::Tensor cached_cast(at::ScalarType to, const at::Tensor& tensor, c10::DeviceType device);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device);
}  // namespace at::autocast

namespace torch_mojo {
namespace {

enum class Policy { kLowerPrecision = 0, kFloat32 = 1, kPromote = 2, kFloat32SetDtype = 3 };

bool is_eligible(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kMojo && tensor.is_floating_point() &&
         tensor.scalar_type() != at::ScalarType::Double;
}

void cast(c10::IValue& value, at::ScalarType to) {
  const auto convert = [to](const at::Tensor& tensor) {
    return is_eligible(tensor) ? at::autocast::cached_cast(to, tensor, kMojo) : tensor;
  };
  if (value.isTensor()) {
    if (is_eligible(value.toTensor())) value = convert(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> converted;
    for (const at::Tensor& tensor : value.toTensorVector()) converted.push_back(convert(tensor));
    value = converted;
  }
}

struct Autocast final : c10::OperatorKernel {
  explicit Autocast(Policy p) : policy(p) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    c10::IValue* arguments = stack->data() + stack->size() - count;
    if (policy == Policy::kFloat32SetDtype) {
      bool eligible = false;
      for_each_tensor(arguments[0], [&](const at::Tensor& tensor) { eligible = is_eligible(tensor); });
      const auto position = schema.argumentIndexWithName("dtype");
      if (eligible && position && arguments[*position].isNone())
        arguments[*position] = static_cast<int64_t>(at::ScalarType::Float);
      return op.callBoxed(stack);
    }
    at::ScalarType to = policy == Policy::kFloat32 ? at::ScalarType::Float : at::autocast::get_autocast_dtype(kMojo);
    if (policy == Policy::kPromote) {
      for (size_t i = 0; i < count; i++)
        for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
          if (is_eligible(tensor)) to = c10::promoteTypes(to, tensor.scalar_type());
        });
    }
    for (size_t i = 0; i < count; i++) cast(arguments[i], to);
    op.callBoxed(stack);
  }

  Policy policy;
};

}  // namespace

void register_autocast_fallthrough() {
  static auto* handle = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::AutocastPrivateUse1, c10::KernelFunction::makeFallthrough(), "torch-mojo-eager"));
  (void)handle;
}

}  // namespace torch_mojo

TORCH_MOJO_API int32_t torch_mojo_register_autocast(const char* name, int32_t policy) {
  using namespace torch_mojo;
  return shield([&] {
    register_kernel(
        name, c10::DispatchKey::AutocastPrivateUse1,
        c10::KernelFunction::makeFromBoxedFunctor<Autocast>(std::make_unique<Autocast>(static_cast<Policy>(policy))));
  });
}
