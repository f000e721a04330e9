// Layer norm: a hot op that torch does not allocate outputs for.
#include "kernel_call.h"

namespace torch_mojo {
namespace {

KernelFamily& forward_family() {
  static KernelFamily family("mojo_kernels.normalization.layer_norm:forward[dtype={0}]", {kFloating});
  return family;
}

KernelFamily& backward_family() {
  static KernelFamily family("mojo_kernels.normalization.layer_norm:backward[dtype={0}]", {kFloating});
  return family;
}

struct Shape {
  int64_t rows = 1, columns = 1;
  std::vector<int64_t> statistics;  // sizes of mean and rstd
};

Shape shape_of(const at::Tensor& input, at::IntArrayRef normalized) {
  const size_t ndim = input.dim(), axes = normalized.size();
  TORCH_CHECK(axes >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
              "but got normalized_shape = ",
              normalized);
  TORCH_CHECK(ndim >= axes && input.sizes().slice(ndim - axes) == normalized, "Given normalized_shape=", normalized,
              ", expected input with shape [*, ", normalized, "], but got input of size", input.sizes());
  Shape shape;
  for (size_t i = 0; i < ndim; i++)
    (i < ndim - axes ? shape.rows : shape.columns) *= input.size(static_cast<int64_t>(i));
  shape.statistics = input.sizes().slice(0, ndim - axes).vec();
  shape.statistics.resize(ndim, 1);
  return shape;
}

at::Tensor optional_parameter(const c10::IValue& value, const at::Tensor& input, at::IntArrayRef normalized,
                              const char* name) {
  if (value.isNone() || !value.toTensor().defined()) return {};
  const at::Tensor& parameter = value.toTensor();
  TORCH_CHECK(parameter.sizes() == normalized, "Expected ", name, " to be of same shape as normalized_shape, but got ",
              name, " of shape ", parameter.sizes(), " and normalized_shape = ", normalized);
  check_same_device(parameter, input.device().index(), "native_layer_norm");
  return parameter.to(input.scalar_type()).contiguous();
}

void add_optional(CallBuilder& call, const at::Tensor& tensor) {
  if (tensor.defined()) {
    call.add(tensor);
  } else {
    call.add_absent();
  }
}

void check_dtype(const at::Tensor& input, const char* op) {
  const auto dtype = input.scalar_type();
  if (!forward_family().supports(dtype)) throw_dtype_not_implemented(op, &dtype, 1);
}

// Statistics of half types are float32, as on CUDA.
at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::ScalarType::Double ? at::ScalarType::Double : at::ScalarType::Float;
}

struct Forward final : c10::OperatorKernel {
  // native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - 5;
    const at::Tensor& given = arguments[0].toTensor();
    const auto normalized = arguments[1].toIntVector();
    check_dtype(given, "native_layer_norm");
    const Shape shape = shape_of(given, normalized);
    const at::Tensor input = given.contiguous();
    const at::Tensor weight = optional_parameter(arguments[2], input, normalized, "weight");
    const at::Tensor bias = optional_parameter(arguments[3], input, normalized, "bias");
    const auto device = input.device().index();
    at::Tensor out = empty_like_contiguous(input);
    at::Tensor mean = empty(shape.statistics, statistics_dtype(input), device);
    at::Tensor rstd = empty(shape.statistics, statistics_dtype(input), device);
    if (shape.rows > 0) {
      CallBuilder call;
      for (const at::Tensor& tensor : {out, mean, rstd, input}) call.add(tensor);
      add_optional(call, weight);
      add_optional(call, bias);
      call.word(shape.rows);
      call.word(shape.columns);
      call.word(float_bits(arguments[4].toDouble()));
      CurrentDevice guard(device);
      call.launch(forward_family().slot(input.scalar_type()), device, "native_layer_norm");
    }
    stack->resize(stack->size() - 5);
    for (auto* result : {&out, &mean, &rstd}) stack->emplace_back(std::move(*result));
  }
};

struct Backward final : c10::OperatorKernel {
  // native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, bool[3] output_mask)
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - 8;
    const at::Tensor input = arguments[1].toTensor().contiguous();
    check_dtype(input, "native_layer_norm_backward");
    const at::Tensor grad_out = arguments[0].toTensor().to(input.scalar_type()).contiguous();
    const auto normalized = arguments[2].toIntVector();
    const Shape shape = shape_of(input, normalized);
    const at::Tensor mean = arguments[3].toTensor().contiguous(), rstd = arguments[4].toTensor().contiguous();
    const at::Tensor weight = optional_parameter(arguments[5], input, normalized, "weight");
    const auto mask = arguments[7].toBoolList();
    const auto device = input.device().index();
    auto parameter_gradient = [&](bool wanted) {
      if (!wanted) return at::Tensor();
      at::Tensor gradient = empty(normalized, input.scalar_type(), device);
      return shape.rows > 0 ? gradient : gradient.zero_();
    };
    at::Tensor dx = mask[0] ? empty_like_contiguous(input) : at::Tensor();
    at::Tensor dweight = parameter_gradient(mask[1]);
    at::Tensor dbias = parameter_gradient(mask[2]);
    if (shape.rows > 0 && shape.columns > 0) {
      CallBuilder call;
      for (const at::Tensor& tensor : {dx, dweight, dbias}) add_optional(call, tensor);
      for (const at::Tensor& tensor : {grad_out, input, mean, rstd}) call.add(tensor);
      add_optional(call, weight);
      call.word(shape.rows);
      call.word(shape.columns);
      CurrentDevice guard(device);
      call.launch(backward_family().slot(input.scalar_type()), device, "native_layer_norm_backward");
    }
    // Parameters of another dtype than the input's get their gradients in theirs.
    auto convert = [&](at::Tensor& gradient, const c10::IValue& parameter) {
      if (gradient.defined() && parameter.isTensor() && parameter.toTensor().defined())
        gradient = gradient.to(parameter.toTensor().scalar_type());
    };
    convert(dweight, arguments[5]);
    convert(dbias, arguments[6]);
    stack->resize(stack->size() - 8);
    for (auto* result : {&dx, &dweight, &dbias}) stack->emplace_back(std::move(*result));
  }
};

}  // namespace

void register_normalization() {
  const auto key = c10::DispatchKey::PrivateUse1;
  register_kernel("native_layer_norm", key,
                  c10::KernelFunction::makeFromBoxedFunctor<Forward>(std::make_unique<Forward>()));
  register_kernel("native_layer_norm_backward", key,
                  c10::KernelFunction::makeFromBoxedFunctor<Backward>(std::make_unique<Backward>()));
}

}  // namespace torch_mojo
