// Batch, group and RMS norm: hot ops that torch does not allocate outputs for.
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <limits>

#include "kernel_call.h"

namespace torch_mojo {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// A module's two kernels: "forward" and "backward".
struct Families {
  explicit Families(const std::string& module, const std::string& parameters)
      : forward(module + ":forward[" + parameters + "]", {kFloating, kFloating}),
        backward(module + ":backward[" + parameters + "]", {kFloating, kFloating}) {}
  KernelFamily forward, backward;
};

Families& batch_norm_families() {
  static Families families("mojo_kernels.normalization.batch_norm", "dtype={0},parameter={1}");
  return families;
}

Families& group_norm_families() {
  static Families families("mojo_kernels.normalization.group_norm", "dtype={0},parameter={1}");
  return families;
}

Families& rms_norm_families() {
  static Families families("mojo_kernels.normalization.layer_norm", "centered=false,dtype={0}");
  return families;
}

// Statistics of half types are float32, as on CUDA.
at::ScalarType accumulation_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_floating(const at::Tensor& input, const char* op) {
  const auto dtype = input.scalar_type();
  if (!batch_norm_families().forward.supports(dtype)) throw_dtype_not_implemented(op, &dtype, 1);
}

bool is_given(const Optional& tensor) { return tensor && tensor->defined(); }

// The one dtype of all parameters: the input's, or float32 beside a half type.
at::ScalarType parameter_dtype(const char* op, const at::Tensor& input, std::initializer_list<const Optional*> given) {
  std::optional<at::ScalarType> found;
  for (const Optional* parameter : given) {
    if (!is_given(*parameter)) continue;
    const auto dtype = (*parameter)->scalar_type();
    check_same_device(**parameter, input.device().index(), op);
    TORCH_CHECK(dtype == found.value_or(dtype) && (dtype == input.scalar_type() || dtype == accumulation_dtype(input)),
                op, ": expected all parameters of dtype ", input.scalar_type(), " or all of dtype ",
                accumulation_dtype(input), " for an input of dtype ", input.scalar_type(), ", got ", dtype);
    found = dtype;
  }
  return found.value_or(input.scalar_type());
}

at::MemoryFormat format_of(const at::Tensor& input) {
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Preserve ? at::MemoryFormat::Contiguous : format;
}

at::Tensor like(const at::Tensor& dense, at::MemoryFormat format) {
  return format == at::MemoryFormat::Contiguous ? empty_like_contiguous(dense)
                                                : at::empty_like(dense, dense.options(), format);
}

// Keeps the contiguous copies of parameters alive for a call.
class NormCall {
 public:
  void add(const at::Tensor& tensor) {
    if (tensor.defined()) {
      call_.add(tensor);
    } else {
      call_.add_absent();
    }
  }
  void vector(const Optional& tensor) {
    if (!is_given(tensor)) return call_.add_absent();
    alive_.push_back(tensor->contiguous());
    call_.add(alive_.back());
  }
  void launch(KernelFamily& family, const at::Tensor& x, at::ScalarType parameter, const char* op,
              std::initializer_list<int64_t> words) {
    for (const int64_t word : words) call_.word(word);
    const std::array<at::ScalarType, 2> dtypes{x.scalar_type(), parameter};
    const auto device = x.device().index();
    CurrentDevice guard(device);
    call_.launch(family.slot(dtypes.data(), 2), device, op);
  }

 private:
  CallBuilder call_;
  c10::SmallVector<at::Tensor, 4> alive_;
};

// ---- batch norm ----------------------------------------------------------------------------------------------------

Three batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& running_mean,
                 const Optional& running_var, bool training, double momentum, double eps) {
  check_floating(input, "native_batch_norm");
  TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input of at least 2 dimensions, got ", input.dim());
  const int64_t channels = input.size(1);
  const std::pair<const char*, const Optional*> parameters[] = {
      {"weight", &weight}, {"bias", &bias}, {"running_mean", &running_mean}, {"running_var", &running_var}};
  for (const auto& [name, parameter] : parameters)
    TORCH_CHECK(!is_given(*parameter) || (*parameter)->numel() == channels, name, " should contain ", channels,
                " elements not ", is_given(*parameter) ? (*parameter)->numel() : 0);
  TORCH_CHECK(is_given(running_mean) == is_given(running_var),
              "running_mean and running_var must either both be None or neither be None");
  TORCH_CHECK(training || is_given(running_mean),
              "Expected running_mean and running_var to be defined when training=False");
  const auto parameter = parameter_dtype("batch_norm", input, {&weight, &bias, &running_mean, &running_var});
  const auto format = format_of(input);
  const at::Tensor x = input.contiguous(format);
  at::Tensor out = like(x, format);
  const auto device = x.device().index();
  at::Tensor mean = empty({training ? channels : 0}, accumulation_dtype(x), device);
  at::Tensor rstd = empty({training ? channels : 0}, accumulation_dtype(x), device);
  if (x.numel() == 0) {  // nothing to normalize, and no statistics to update
    if (training) return {out, mean.zero_(), rstd.zero_()};
    return {out, mean, rstd};
  }
  const Optional running[] = {is_given(running_mean) ? Optional(running_mean->contiguous()) : Optional(),
                              is_given(running_var) ? Optional(running_var->contiguous()) : Optional()};
  NormCall call;
  for (const at::Tensor& tensor : {out, mean, rstd}) call.add(tensor);
  for (const Optional& tensor : running) call.vector(training ? tensor : Optional());
  call.add(x);
  for (const Optional& tensor : {weight, bias, running[0], running[1]}) call.vector(tensor);
  call.launch(batch_norm_families().forward, x, parameter, "native_batch_norm",
              {training, float_bits(momentum), float_bits(eps)});
  if (training && is_given(running_mean)) {
    if (!running_mean->is_contiguous()) running_mean->copy_(*running[0]);
    if (!running_var->is_contiguous()) running_var->copy_(*running[1]);
  }
  return {out, mean, rstd};
}

Three batch_norm_legit(const at::Tensor& input, const Optional& weight, const Optional& bias, at::Tensor& running_mean,
                       at::Tensor& running_var, bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

Three batch_norm_no_stats(const at::Tensor& input, const Optional& weight, const Optional& bias, bool training,
                          double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

// Gradients of the parameters, zero where nothing adds to them; undefined where they are not wanted.
at::Tensor parameter_gradient(bool wanted, at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& x) {
  if (!wanted) return {};
  at::Tensor gradient = empty(sizes, dtype, x.device().index());
  return x.numel() == 0 ? gradient.zero_() : gradient;
}

Three batch_norm_backward(const at::Tensor& grad_out, const at::Tensor& input, const Optional& weight,
                          const Optional& running_mean, const Optional& running_var, const Optional& save_mean,
                          const Optional& save_rstd, bool training, double eps, std::array<bool, 3> mask) {
  check_floating(input, "native_batch_norm_backward");
  const Optional none;
  const auto parameter = parameter_dtype("batch_norm_backward", input,
                                         {&weight, training ? &none : &running_mean, training ? &none : &running_var});
  const auto format = format_of(input);
  const at::Tensor x = input.contiguous(format);
  const at::Tensor dy = grad_out.to(x.scalar_type()).contiguous(format);
  at::Tensor dx = mask[0] ? like(x, format) : at::Tensor();
  at::Tensor dweight = parameter_gradient(mask[1], {x.size(1)}, parameter, x);
  at::Tensor dbias = parameter_gradient(mask[2], {x.size(1)}, parameter, x);
  if (x.numel() > 0) {
    NormCall call;
    for (const at::Tensor& tensor : {dx, dweight, dbias, dy, x}) call.add(tensor);
    call.vector(training ? save_mean : none);
    call.vector(training ? save_rstd : none);
    call.vector(training ? none : running_mean);
    call.vector(training ? none : running_var);
    call.vector(weight);
    call.launch(batch_norm_families().backward, x, parameter, "native_batch_norm_backward",
                {training, float_bits(eps)});
  }
  return {dx, dweight, dbias};
}

// ---- group norm ----------------------------------------------------------------------------------------------------

// The tensor [batch, channels, ...]; composites of torch may pass other shapes of as many elements.
at::Tensor with_batch(const at::Tensor& x, int64_t batch, int64_t channels, int64_t positions) {
  if (!x.defined() || (x.dim() >= 2 && x.size(0) == batch && x.size(1) == channels)) return x;
  return x.reshape({batch, channels, positions});
}

Three group_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, c10::SymInt sym_batch,
                 c10::SymInt sym_channels, c10::SymInt sym_positions, int64_t groups, double eps) {
  const int64_t batch = sym_batch.guard_int(__FILE__, __LINE__), channels = sym_channels.guard_int(__FILE__, __LINE__);
  const int64_t positions = sym_positions.guard_int(__FILE__, __LINE__);
  check_floating(input, "native_group_norm");
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0,
              "Expected number of channels in input to be divisible by num_groups, but got input of shape ",
              input.sizes(), " and num_groups=", groups);
  const std::pair<const char*, const Optional*> parameters[] = {{"weight", &weight}, {"bias", &bias}};
  for (const auto& [name, parameter] : parameters)
    TORCH_CHECK(!is_given(*parameter) || ((*parameter)->dim() == 1 && (*parameter)->numel() == channels), "Expected ",
                name, " to be a vector of size equal to the number of channels in input, but got another shape for ",
                "input of shape ", input.sizes());
  const auto parameter = parameter_dtype("group_norm", input, {&weight, &bias});
  const auto format = format_of(input);
  const at::Tensor x = input.contiguous(format);
  at::Tensor out = like(x, format);
  at::Tensor mean = empty({batch, groups}, accumulation_dtype(x), x.device().index());
  at::Tensor rstd = empty({batch, groups}, accumulation_dtype(x), x.device().index());
  if (x.numel() == 0) return {out, mean.fill_(NAN), rstd.fill_(NAN)};
  const at::Tensor dense_out = with_batch(out, batch, channels, positions);
  const at::Tensor dense = with_batch(x, batch, channels, positions);
  NormCall call;
  for (const at::Tensor& tensor : {dense_out, mean, rstd, dense}) call.add(tensor);
  call.vector(weight);
  call.vector(bias);
  call.launch(group_norm_families().forward, x, parameter, "native_group_norm", {groups, float_bits(eps)});
  return {out, mean, rstd};
}

Three group_norm_backward(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
                          const at::Tensor& rstd, const Optional& weight, c10::SymInt sym_batch,
                          c10::SymInt sym_channels, c10::SymInt sym_positions, int64_t groups,
                          std::array<bool, 3> mask) {
  const int64_t batch = sym_batch.guard_int(__FILE__, __LINE__), channels = sym_channels.guard_int(__FILE__, __LINE__);
  const int64_t positions = sym_positions.guard_int(__FILE__, __LINE__);
  check_floating(input, "native_group_norm_backward");
  const auto parameter = parameter_dtype("group_norm_backward", input, {&weight});
  const auto format = format_of(input);
  const at::Tensor x = input.contiguous(format);
  const at::Tensor dy = grad_out.to(x.scalar_type()).contiguous(format);
  at::Tensor dx = mask[0] ? like(x, format) : at::Tensor();
  at::Tensor dweight = parameter_gradient(mask[1], {channels}, parameter, x);
  at::Tensor dbias = parameter_gradient(mask[2], {channels}, parameter, x);
  if (x.numel() > 0) {
    const at::Tensor dense[] = {with_batch(dx, batch, channels, positions), with_batch(dy, batch, channels, positions),
                                with_batch(x, batch, channels, positions)};
    const auto accumulation = accumulation_dtype(x);
    NormCall call;
    for (const at::Tensor& tensor : {dense[0], dweight, dbias, dense[1], dense[2]}) call.add(tensor);
    call.vector(mean.to(accumulation));
    call.vector(rstd.to(accumulation));
    call.vector(weight);
    call.launch(group_norm_families().backward, x, parameter, "native_group_norm_backward", {groups});
  }
  return {dx, dweight, dbias};
}

// ---- RMS norm ------------------------------------------------------------------------------------------------------

// The numbers of rows and columns that normalization over the last dimensions sees.
std::pair<int64_t, int64_t> rows_of(const at::Tensor& input, at::IntArrayRef normalized, const Optional& weight) {
  const size_t ndim = input.dim(), axes = normalized.size();
  TORCH_CHECK(axes >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
              "but got normalized_shape = ",
              normalized);
  TORCH_CHECK(
      !is_given(weight) || weight->sizes() == normalized,
      "Expected weight to be of same shape as normalized_shape, but got another for normalized_shape = ", normalized);
  TORCH_CHECK(ndim >= axes && input.sizes().slice(ndim - axes) == normalized, "Given normalized_shape=", normalized,
              ", expected input with shape [*, ", normalized, "], but got input of size", input.sizes());
  return {c10::multiply_integers(input.sizes().slice(0, ndim - axes)), c10::multiply_integers(normalized)};
}

Optional in_dtype_of(const Optional& weight, const at::Tensor& x) {
  return is_given(weight) ? Optional(weight->to(x.scalar_type())) : Optional();
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input, at::IntArrayRef normalized, const Optional& weight,
                                            std::optional<double> eps) {
  check_floating(input, "_fused_rms_norm");
  const auto [rows, columns] = rows_of(input, normalized, weight);
  const at::Tensor x = input.contiguous();
  at::Tensor out = empty_like_contiguous(x);
  std::vector<int64_t> sizes = input.sizes().slice(0, input.dim() - normalized.size()).vec();
  sizes.resize(input.dim(), 1);
  at::Tensor rstd = empty(sizes, accumulation_dtype(x), x.device().index());
  if (rows > 0) {
    const double least = accumulation_dtype(x) == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                              : std::numeric_limits<float>::epsilon();
    NormCall call;
    for (const at::Tensor& tensor : {out, at::Tensor(), rstd, x}) call.add(tensor);
    call.vector(in_dtype_of(weight, x));
    call.add(at::Tensor());
    call.launch(rms_norm_families().forward, x, x.scalar_type(), "_fused_rms_norm",
                {rows, columns, float_bits(eps.value_or(least))});
  }
  return {out, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                     at::IntArrayRef normalized, const at::Tensor& rstd,
                                                     const Optional& weight, std::array<bool, 2> mask) {
  check_floating(input, "_fused_rms_norm_backward");
  const auto [rows, columns] = rows_of(input, normalized, weight);
  const at::Tensor x = input.contiguous();
  const at::Tensor dy = grad_out.to(x.scalar_type()).contiguous();
  at::Tensor dx = mask[0] ? empty_like_contiguous(x) : at::Tensor();
  at::Tensor dweight = parameter_gradient(mask[1] && is_given(weight), normalized, x.scalar_type(), x);
  if (x.numel() > 0) {
    NormCall call;
    for (const at::Tensor& tensor : {dx, dweight, at::Tensor(), dy, x, at::Tensor()}) call.add(tensor);
    call.vector(rstd);
    call.vector(in_dtype_of(weight, x));
    call.launch(rms_norm_families().backward, x, x.scalar_type(), "_fused_rms_norm_backward", {rows, columns});
  }
  if (dweight.defined()) dweight = dweight.to(weight->scalar_type());
  return {dx, dweight};
}

}  // namespace

void register_channel_norm() {
  auto add = [](const char* name, c10::KernelFunction kernel) {
    register_kernel(name, c10::DispatchKey::PrivateUse1, std::move(kernel));
  };
  add("native_batch_norm", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(batch_norm)));
  add("_native_batch_norm_legit", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(batch_norm_legit)));
  add("_native_batch_norm_legit.no_stats", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(batch_norm_no_stats)));
  add("native_batch_norm_backward", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(batch_norm_backward)));
  add("native_group_norm", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(group_norm)));
  add("native_group_norm_backward", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(group_norm_backward)));
  add("_fused_rms_norm", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(rms_norm)));
  add("_fused_rms_norm_backward", c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(rms_norm_backward)));
}

}  // namespace torch_mojo
