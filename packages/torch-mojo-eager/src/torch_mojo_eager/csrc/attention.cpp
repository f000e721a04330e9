// How scaled_dot_product_attention is computed: by the fused kernels (ops/attention.py), or by torch's composition of
// matrix products and a softmax.
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>

#include "common.h"

namespace torch_mojo {
namespace {

// Values of torch's SDPBackend.
constexpr int64_t kMath = 0;
constexpr int64_t kFused = 4;  // "overrideable"

// Whether the fused kernels compute what the arguments, which torch has validated, ask for.
bool is_served(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, bool is_causal, bool enable_gqa) {
  const int64_t dimensions = query.dim();
  if ((dimensions != 3 && dimensions != 4) || key.dim() != dimensions || value.dim() != dimensions) return false;
  const auto dtype = query.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kHalf && dtype != at::kBFloat16) return false;
  if (dimensions == 4 && key.size(0) != query.size(0)) return false;
  for (int64_t i = 0; i < dimensions - 1; ++i)
    if (key.size(i) != value.size(i)) return false;
  if (query.size(-1) != key.size(-1)) return false;
  const int64_t heads = query.size(-3), key_heads = key.size(-3);
  if (heads != key_heads && !(enable_gqa && key_heads > 0 && heads % key_heads == 0)) return false;
  // The kernels have no gradient for the mask.
  return !mask || !mask->defined() || (mask->dim() <= dimensions && !is_causal && !mask->requires_grad());
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double /*dropout_p*/, bool is_causal,
               std::optional<double> /*scale*/, bool enable_gqa) {
  const bool enabled = at::globalContext().userEnabledOverrideableSDP();
  return enabled && is_served(query, key, value, mask, is_causal, enable_gqa) ? kFused : kMath;
}

}  // namespace

void register_attention() {
  // Composite attention asks the stub, Python code the op.
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  register_kernel("_fused_sdp_choice", c10::DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(choose)));
}

}  // namespace torch_mojo
