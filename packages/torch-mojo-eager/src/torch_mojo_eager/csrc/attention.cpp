// Scaled dot-product attention by fused kernels that do not store the scores, where they serve the arguments; else
// torch composes it of matrix products and a softmax.
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "kernel_call.h"

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

// [heads, sequence, features] as a batch of one.
at::Tensor batched(const at::Tensor& tensor) { return tensor.dim() == 4 ? tensor : tensor.unsqueeze(0); }

// An output with the query's order of dimensions in memory, so that merging its heads again copies nothing.
at::Tensor output_like(const at::Tensor& query, int64_t features) {
  if (query.size(-1) == features) return at::empty_like(query);
  auto sizes = query.sizes().vec();
  sizes.back() = features;
  const bool heads_inside = query.stride(-3) < query.stride(-2);
  if (heads_inside) std::swap(sizes[sizes.size() - 3], sizes[sizes.size() - 2]);
  const at::Tensor output = empty(sizes, query.scalar_type(), query.device().index());
  return heads_inside ? output.transpose(-3, -2) : output;
}

// A launch whose tensors are [batch, heads, sequence, features] or lack the batch.
class AttentionCall {
 public:
  AttentionCall(const char* op, const at::Tensor& query) : op_(op), query_(query) {}
  void add(const at::Tensor& tensor) {
    check_same_device(tensor, query_.device().index(), op_);
    alive_.push_back(batched(tensor));
    call_.add(alive_.back());
  }
  void add_logsumexp(const at::Tensor& logsumexp) { call_.add(logsumexp); }
  void add_bias(const at::Tensor& bias) {
    if (!bias.defined()) return call_.add_absent();
    check_same_device(bias, query_.device().index(), op_);
    call_.add(bias);
  }
  void launch(KernelFamily& family, bool is_causal, std::optional<double> scale, double dropout_p,
              const std::vector<int64_t>& generator_state) {
    const auto dtype = query_.scalar_type();
    if (!family.supports(dtype)) throw_dtype_not_implemented(op_, &dtype, 1);
    const auto depth = static_cast<double>(query_.size(-1));
    call_.word(is_causal);
    call_.word(float_bits(scale.value_or(depth > 0 ? 1 / std::sqrt(depth) : 0)));
    call_.word(float_bits(dropout_p));
    for (const int64_t word : generator_state) call_.word(word);
    const auto device = query_.device().index();
    CurrentDevice guard(device);
    call_.launch(family.slot(dtype), device, op_);
  }

 private:
  const char* op_;
  const at::Tensor& query_;
  CallBuilder call_;
  c10::SmallVector<at::Tensor, 8> alive_;
};

using AttentionResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                                    at::Tensor, at::Tensor, at::Tensor>;

// The output, the scores' logsumexp [batch, heads, queries], nothing twice, the lengths of query and key, the
// generator's seed and offset (CPU tensors, 0 without dropout) and nothing.
AttentionResults attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const std::optional<at::Tensor>& bias, double dropout_p, bool is_causal,
                           bool return_debug_mask, std::optional<double> scale) {
  static KernelFamily family("mojo_kernels.attention.forward:forward[dtype={0}]", {kFloating});
  constexpr const char* op = "_scaled_dot_product_fused_attention_overrideable";
  TORCH_CHECK_NOT_IMPLEMENTED(!return_debug_mask, op, " has no debug mask on mojo");
  const auto device = query.device().index();
  const int64_t queries = query.size(-2), keys = key.size(-2);
  const at::Tensor output = output_like(query, value.size(-1));
  const at::Tensor logsumexp = empty({query.dim() == 4 ? query.size(0) : 1, query.size(-3), queries},
                                     query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, device);
  std::vector<int64_t> state = {0, 0};
  // A row of the weights is a subsequence of its own, and a draw serves four keys.
  if (dropout_p > 0) state = philox_state({}, device, (keys + 3) / 4 * 4);
  AttentionCall call(op, query);
  call.add(output);
  call.add_logsumexp(logsumexp);
  for (const at::Tensor& tensor : {query, key, value}) call.add(tensor);
  call.add_bias(bias.value_or(at::Tensor()));
  call.launch(family, is_causal, scale, dropout_p, state);
  return {output,
          logsumexp,
          {},
          {},
          queries,
          keys,
          at::scalar_tensor(state[0], at::kLong),
          at::scalar_tensor(state[1], at::kLong),
          {}};
}

// Gradients of query, key and value, from the weights computed again.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor& /*cum_seq_q*/, const at::Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/,
    double dropout_p, bool is_causal, const at::Tensor& seed, const at::Tensor& offset, std::optional<double> scale) {
  static KernelFamily family("mojo_kernels.attention.backward:backward[dtype={0}]", {kFloating});
  constexpr const char* op = "_scaled_dot_product_fused_attention_overrideable_backward";
  TORCH_CHECK_NOT_IMPLEMENTED(!mask[3], "aten::", op, " has no gradient for attn_bias of dtype ",
                              dtype_name(query.scalar_type()),
                              " on mojo; use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)");
  // Autograd asks this op also where no gradient arrived.
  if (!grad_out.defined()) return {};
  const at::Tensor dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  std::vector<int64_t> state = {0, 0};
  if (dropout_p > 0) state = {seed.item<int64_t>(), offset.item<int64_t>()};
  AttentionCall call(op, query);
  for (const at::Tensor& tensor : {dq, dk, dv, grad_out, query, key, value, out}) call.add(tensor);
  call.add_logsumexp(logsumexp);
  call.add_bias(bias);
  call.launch(family, is_causal, scale, dropout_p, state);
  return {dq, dk, dv, {}};
}

}  // namespace

void register_attention() {
  const auto key = c10::DispatchKey::PrivateUse1;
  register_kernel("_scaled_dot_product_fused_attention_overrideable", key,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(attention)));
  register_kernel("_scaled_dot_product_fused_attention_overrideable_backward", key,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(attention_backward)));
  // Composite attention asks the stub, Python code the op.
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  register_kernel("_fused_sdp_choice", key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(choose)));
}

}  // namespace torch_mojo
