// Sequences of numbers, which programs make at every step.
#include <ATen/native/RangeUtils.h>

#include "kernel_call.h"

namespace torch_mojo {
namespace {

KernelFamily& arange_family() {
  static KernelFamily family("mojo_kernels.range:arange[dtype={0}]", {kNumeric});
  return family;
}

// start, start + step, ... below `end`.
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const at::ScalarType dtype = out.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(arange_family().supports(dtype), "arange is not implemented on mojo for dtype torch.",
                              dtype_name(dtype), "; create it as int64 and convert it");
  const int64_t length = dtype == at::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                            : at::native::compute_arange_size<double>(start, end, step);
  if (out.numel() != length) out.resize_({length});
  if (length == 0) return out;
  const at::Tensor flat = out.dim() == 1 ? out : out.view(-1);
  CallBuilder call;
  call.add(flat);
  call.number(start);
  call.number(step);
  const auto device = out.device().index();
  CurrentDevice guard(device);
  call.launch(arange_family().slot(dtype), device, "arange");
  return out;
}

}  // namespace

void register_creation() {
  register_kernel("arange.start_out", c10::DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(arange_out)));
}

}  // namespace torch_mojo
