#include "structured.h"

#include <ATen/EmptyTensor.h>

namespace torch_mojo {

thread_local bool TrustOutputs::trusted_ = false;

namespace {

struct StructuredForm final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    TrustOutputs trust;
    op.redispatchBoxed(c10::DispatchKeySet(kDefaultKernels), stack);
  }
};

at::Tensor to_meta(const at::Tensor& tensor) {
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

c10::IValue to_meta(const c10::IValue& value, const c10::Type& type) {
  if (value.isTensor()) return value.toTensor().defined() ? to_meta(value.toTensor()) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> metas;
    for (const at::Tensor& tensor : value.toTensorVector()) metas.push_back(to_meta(tensor));
    return metas;
  }
  if (value.isList() && type.str().find("Tensor") != std::string::npos) {
    c10::List<std::optional<at::Tensor>> metas;
    for (const auto& item : value.toListRef())
      metas.push_back(item.isTensor() && item.toTensor().defined() ? std::optional(to_meta(item.toTensor()))
                                                                   : std::nullopt);
    return metas;
  }
  return value;
}

}  // namespace

void register_structured_form(const std::string& overload) {
  register_kernel(overload, c10::DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromBoxedFunctor<StructuredForm>(std::make_unique<StructuredForm>()));
}

std::vector<at::Tensor> infer_outputs(const c10::OperatorHandle& functional, const c10::FunctionSchema& schema,
                                      const c10::IValue* arguments) {
  torch::jit::Stack stack;
  for (const auto& argument : functional.schema().arguments()) {
    const auto position = schema.argumentIndexWithName(argument.name());
    TORCH_INTERNAL_ASSERT(position);
    stack.push_back(to_meta(arguments[*position], *argument.type()));
  }
  functional.callBoxed(&stack);
  std::vector<at::Tensor> outputs;
  for (const auto& value : stack) for_each_tensor(value, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  return outputs;
}

}  // namespace torch_mojo

// Registers the functional or in-place form of a structured op whose out form is a Python op.
TORCH_MOJO_API int32_t torch_mojo_register_structured_form(const char* overload) {
  using namespace torch_mojo;
  return shield([&] { register_structured_form(overload); });
}

// Whether the out form that asks was called by such a form: torch has checked the arguments and allocated the outputs.
TORCH_MOJO_API int32_t torch_mojo_take_trust() { return torch_mojo::TrustOutputs::take(); }
