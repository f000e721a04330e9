// Convolutions: torch's "overrideable" backend, which has checked shapes and broadcast the lists of numbers.
#include <ATen/EmptyTensor.h>

#include "kernel_call.h"

namespace torch_mojo {
namespace {

constexpr uint64_t kConvolutionDtypes =
    1 << static_cast<int>(at::ScalarType::Half) | 1 << static_cast<int>(at::ScalarType::Float) |
    1 << static_cast<int>(at::ScalarType::Double) | 1 << static_cast<int>(at::ScalarType::BFloat16) |
    1 << static_cast<int>(at::ScalarType::Long);

KernelFamily& convolve_family() {
  static KernelFamily family("mojo_kernels.convolution.convolve:convolve[dtype={0}]", {kConvolutionDtypes});
  return family;
}

KernelFamily& weight_gradient_family() {
  static KernelFamily family("mojo_kernels.convolution.weight:weight_gradient[dtype={0}]", {kConvolutionDtypes});
  return family;
}

struct Parameters {
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  // From the arguments stride, padding, dilation, transposed, output_padding, groups.
  explicit Parameters(const c10::IValue* arguments)
      : stride(arguments[0].toIntVector()),
        padding(arguments[1].toIntVector()),
        dilation(arguments[2].toIntVector()),
        output_padding(arguments[4].toIntVector()),
        transposed(arguments[3].toBool()),
        groups(arguments[5].toInt()) {}

  std::vector<int64_t> output_sizes(const at::Tensor& input, const at::Tensor& weight) const {
    std::vector<int64_t> sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
    for (int64_t d = 2; d < input.dim(); d++) {
      const int64_t extent = dilation[d - 2] * (weight.size(d) - 1) + 1, padded = 2 * padding[d - 2];
      sizes.push_back(transposed ? (input.size(d) - 1) * stride[d - 2] - padded + extent + output_padding[d - 2]
                                 : (input.size(d) + padded - extent) / stride[d - 2] + 1);
    }
    return sizes;
  }

  void add_to(CallBuilder& call) const {
    call.word(groups);
    for (const auto* list : {&stride, &padding, &dilation}) {
      call.word(static_cast<int64_t>(list->size()));
      for (const int64_t value : *list) call.word(value);
    }
  }
};

// Channels last where input or weight is, as torch chooses for CPUs.
at::MemoryFormat memory_format(const at::Tensor& input, const at::Tensor& weight) {
  const auto candidate = input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  const bool chosen = input.suggest_memory_format() == candidate || weight.suggest_memory_format() == candidate;
  return chosen ? candidate : at::MemoryFormat::Contiguous;
}

at::Tensor empty_formatted(at::IntArrayRef sizes, const at::Tensor& like, at::MemoryFormat format) {
  CurrentDevice guard(like.device().index());
  return at::detail::empty_generic(sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   like.scalar_type(), format);
}

void check_dtypes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.toString(), ") and weight type (",
              weight.toString(), ") should be the same");
  TORCH_CHECK(!bias.defined() || input.scalar_type() == bias.scalar_type(), "Input type (", input.toString(),
              ") and bias type (", bias.toString(), ") should be the same");
  const auto dtype = input.scalar_type();
  if (!convolve_family().supports(dtype)) throw_dtype_not_implemented("convolution", &dtype, 1);
}

// A convolution, or a transposed one, into `output`.
void convolve(const at::Tensor& output, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
              const Parameters& parameters, bool transposed) {
  if (output.numel() == 0) return;
  CallBuilder call;
  for (const auto* tensor : {&output, &input, &weight}) call.add(*tensor);
  if (bias.defined())
    call.add(bias);
  else
    call.add_absent();
  call.word(transposed);
  parameters.add_to(call);
  const auto device = input.device().index();
  CurrentDevice guard(device);
  call.launch(convolve_family().slot(input.scalar_type()), device, "convolution");
}

at::Tensor optional_tensor(const c10::IValue& value) { return value.isNone() ? at::Tensor() : value.toTensor(); }

struct Convolution final : c10::OperatorKernel {
  // convolution_overrideable(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - 9;
    const at::Tensor bias = optional_tensor(arguments[2]);
    const Parameters parameters(arguments + 3);
    check_dtypes(arguments[0].toTensor(), arguments[1].toTensor(), bias);
    const auto format = memory_format(arguments[0].toTensor(), arguments[1].toTensor());
    const at::Tensor input = arguments[0].toTensor().contiguous(format);
    const at::Tensor& weight = arguments[1].toTensor();
    const auto sizes = parameters.output_sizes(input, weight);
    at::Tensor output = empty_formatted(sizes, input, format);
    convolve(output, input, weight, bias, parameters, parameters.transposed);
    stack->resize(stack->size() - 9);
    stack->emplace_back(std::move(output));
  }
};

struct ConvolutionBackward final : c10::OperatorKernel {
  // convolution_backward_overrideable(grad_output, input, weight, stride, padding, dilation, transposed,
  // output_padding, groups, bool[3] output_mask) -> (grad_input, grad_weight, grad_bias)
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::IValue* arguments = stack->data() + stack->size() - 10;
    const Parameters parameters(arguments + 3);
    const auto mask = arguments[9].toBoolList();
    const at::Tensor& weight = arguments[2].toTensor();
    check_dtypes(arguments[1].toTensor(), weight, arguments[0].toTensor());
    const auto format = memory_format(arguments[1].toTensor(), weight);
    const at::Tensor grad_output = arguments[0].toTensor().contiguous(format);
    const at::Tensor input = arguments[1].toTensor().contiguous(format);
    at::Tensor grad_input, grad_weight, grad_bias;
    if (mask[0]) {
      grad_input = empty_formatted(input.sizes(), input, format);
      convolve(grad_input, grad_output, weight, {}, parameters, !parameters.transposed);
    }
    if (mask[1]) {
      grad_weight = empty_formatted(weight.sizes(), weight, format);
      if (grad_weight.numel() > 0) {
        CallBuilder call;
        call.add(grad_weight);
        call.add(parameters.transposed ? input : grad_output);
        call.add(parameters.transposed ? grad_output : input);
        parameters.add_to(call);
        const auto device = input.device().index();
        CurrentDevice guard(device);
        call.launch(weight_gradient_family().slot(input.scalar_type()), device, "convolution_backward");
      }
    }
    if (mask[2]) {
      std::vector<int64_t> dimensions{0};
      for (int64_t d = 2; d < grad_output.dim(); d++) dimensions.push_back(d);
      grad_bias = grad_output.sum(dimensions);
    }
    stack->resize(stack->size() - 10);
    for (auto* result : {&grad_input, &grad_weight, &grad_bias}) stack->emplace_back(std::move(*result));
  }
};

}  // namespace

void register_convolution() {
  const auto key = c10::DispatchKey::PrivateUse1;
  register_kernel("convolution_overrideable", key,
                  c10::KernelFunction::makeFromBoxedFunctor<Convolution>(std::make_unique<Convolution>()));
  register_kernel(
      "convolution_backward_overrideable", key,
      c10::KernelFunction::makeFromBoxedFunctor<ConvolutionBackward>(std::make_unique<ConvolutionBackward>()));
}

}  // namespace torch_mojo
