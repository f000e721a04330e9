// Random fills and dropout. The values are those of a CUDA device for the same seed: see mojo_kernels/random.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include "kernel_call.h"

namespace torch_mojo {
namespace {

using Generator = std::optional<at::Generator>;

constexpr uint64_t kNumeric = kFloating | 1 << static_cast<int>(at::kByte) | 1 << static_cast<int>(at::kChar) |
                              1 << static_cast<int>(at::kShort) | 1 << static_cast<int>(at::kInt) |
                              1 << static_cast<int>(at::kLong);
constexpr uint64_t kAll = kNumeric | 1 << static_cast<int>(at::kBool);

// Blocks of the draw layout's largest grid, for every device.
std::vector<int64_t>& max_blocks() {
  static auto* blocks = new std::vector<int64_t>;
  return *blocks;
}

constexpr int64_t kBlock = 256;

// Advances the generator by the draws of one call; returns what random kernels take first: seed, offset, max_blocks.
std::vector<int64_t> reserve_draws(const Generator& generator, int64_t device, int64_t numel, int64_t unroll) {
  const int64_t blocks = max_blocks().at(device);
  const int64_t threads = kBlock * std::min((numel + kBlock - 1) / kBlock, blocks);
  const int64_t increment = 4 * ((numel + threads * unroll - 1) / (threads * unroll));
  auto words = philox_state(generator, device, increment);
  words.push_back(blocks);
  return words;
}

// The elements of a non-overlapping and dense tensor in the order of memory; bools as bytes. Owns what the view needs.
struct Flat {
  explicit Flat(const at::Tensor& dense) : size(dense.numel()), view(view_of(dense)) {
    view.sizes = &size;
    view.strides = &stride;
    view.ndim = 1;
    if (dense.scalar_type() == at::kBool) view.dtype = static_cast<int32_t>(at::kByte);
  }
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;
  int64_t size, stride = 1;
  MojoTensor view;
};

at::ScalarType drawn_dtype(const at::Tensor& self) {
  return self.scalar_type() == at::kBool ? at::kByte : self.scalar_type();
}

// A distribution's kernels and the dtypes that can be filled.
struct Fill {
  Fill(const char* op, const std::string& kernel, uint64_t mask)
      : name(op),
        family("mojo_kernels.random.distributions:" + kernel, {mask & ~(1 << static_cast<int>(at::kBool))}),
        allowed(mask) {}

  void check_dtype(const at::Tensor& self) const {
    const auto dtype = self.scalar_type();
    if (!(allowed >> static_cast<int>(dtype) & 1)) throw_dtype_not_implemented(name, &dtype, 1);
  }

  at::Tensor& operator()(at::Tensor& self, const Generator& generator, std::initializer_list<int64_t> words,
                         int64_t unroll) {
    if (self.numel() == 0) return self;
    const at::Tensor target = self.is_non_overlapping_and_dense() ? self : at::empty_like(self);
    const auto device = self.device().index();
    const Flat flat(target);
    CallBuilder call;
    call.add(flat.view);
    for (const int64_t word : reserve_draws(generator, device, self.numel(), unroll)) call.word(word);
    for (const int64_t word : words) call.word(word);
    CurrentDevice guard(device);
    call.launch(family.slot(drawn_dtype(self)), device, name);
    if (!target.is_same(self)) self.copy_(target);
    return self;
  }

  at::Tensor& operator()(at::Tensor& self, const Generator& generator, double a, double b) {
    return (*this)(self, generator, {float_bits(a), float_bits(b)}, self.scalar_type() == at::kDouble ? 2 : 4);
  }

  const char* name;
  KernelFamily family;
  uint64_t allowed;
};

at::Tensor& uniform_(at::Tensor& self, double from, double to, Generator generator) {
  if (self.is_complex()) {
    at::Tensor parts = at::view_as_real(self);
    uniform_(parts, from, to, generator);
    return self;
  }
  static Fill fill("uniform_", "uniform[dtype={0}]", kFloating);
  fill.check_dtype(self);
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return fill(self, generator, from, to);
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, Generator generator) {
  if (self.is_complex()) {  // half of the variance for each part
    at::Tensor parts = at::view_as_real(self);
    normal_(parts, mean, std / std::sqrt(2.0), generator);
    return self;
  }
  static Fill fill("normal_", "normal[dtype={0},logarithmic=false]", kFloating);
  fill.check_dtype(self);
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  return fill(self, generator, mean, std);
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, Generator generator) {
  static Fill fill("log_normal_", "normal[dtype={0},logarithmic=true]", kFloating);
  fill.check_dtype(self);
  TORCH_CHECK(std > 0, "log_normal_ expects std > 0.0, but found std=", std);
  return fill(self, generator, mean, std);
}

at::Tensor& exponential_(at::Tensor& self, double rate, Generator generator) {
  static Fill fill("exponential_", "inverse[dtype={0},kind=exponential]", kFloating);
  fill.check_dtype(self);
  TORCH_CHECK(rate > 0, "exponential_ expects lambda > 0.0, but found lambda=", rate);
  return fill(self, generator, rate, 0);
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, Generator generator) {
  static Fill fill("cauchy_", "inverse[dtype={0},kind=cauchy]", kFloating);
  fill.check_dtype(self);
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  return fill(self, generator, median, sigma);
}

at::Tensor& geometric_(at::Tensor& self, double p, Generator generator) {
  static Fill fill("geometric_", "inverse[dtype={0},kind=geometric]", kNumeric);
  fill.check_dtype(self);
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return fill(self, generator, p, 0);
}

at::Tensor& bernoulli_(at::Tensor& self, double p, Generator generator) {
  static Fill fill("bernoulli_", "bernoulli[dtype={0}]", kAll);
  fill.check_dtype(self);
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return fill(self, generator, p, 0);
}

at::Tensor& bernoulli_tensor_(at::Tensor& self, const at::Tensor& p, Generator generator) {
  static KernelFamily family("mojo_kernels.random.dropout:bernoulli[dtype={0},probability={1}]", {kNumeric, kFloating});
  if (self.device() != p.device()) throw_different_devices(self.device(), p.device(), "bernoulli_");
  const std::array<at::ScalarType, 2> dtypes{drawn_dtype(self), p.scalar_type()};
  if (!family.supports(dtypes[0], 0) || !family.supports(dtypes[1], 1))
    throw_dtype_not_implemented("bernoulli_", dtypes.data(), 2);
  if (self.numel() == 0) return self;
  const auto device = self.device().index();
  const at::Tensor probabilities = p.expand(self.sizes()).contiguous();
  const at::Tensor target = self.is_contiguous() ? self : empty_like_contiguous(self);
  const Flat flat(target), flat_probabilities(probabilities);
  CallBuilder call;
  for (const Flat* operand : {&flat, &flat_probabilities}) call.add(operand->view);
  for (const int64_t word : reserve_draws(generator, device, self.numel(), 4)) call.word(word);
  CurrentDevice guard(device);
  call.launch(family.slot(dtypes.data(), 2), device, "bernoulli_");
  if (!target.is_same(self)) self.copy_(target);
  return self;
}

// ---- integers ------------------------------------------------------------------------------------------------------

// Largest integer that a type holds, or up to which a floating type holds every integer.
int64_t integer_limit(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 1;
    case at::kByte:
      return 255;
    case at::kHalf:
      return 1 << 11;
    case at::kBFloat16:
      return 1 << 8;
    case at::kFloat:
      return 1 << 24;
    case at::kDouble:
      return int64_t{1} << 53;
    default:
      return std::numeric_limits<int64_t>::max() >> (64 - 8 * static_cast<int64_t>(c10::elementSize(dtype)));
  }
}

// Fills with integers from `base` to `base + count - 1`; a count of 0 stands for 2^64.
at::Tensor& integers(at::Tensor& self, int64_t base, uint64_t count, bool wide, const Generator& generator) {
  static Fill narrow("random_", "integer[dtype={0},wide=false]", kAll);
  static Fill broad("random_", "integer[dtype={0},wide=true]", kAll);
  return (wide ? broad : narrow)(self, generator, {base, static_cast<int64_t>(count)}, wide ? 2 : 4);
}

void check_integers(const at::Tensor& self) {
  const auto dtype = self.scalar_type();
  if (!(kAll >> static_cast<int>(dtype) & 1)) throw_dtype_not_implemented("random_", &dtype, 1);
}

at::Tensor& random_(at::Tensor& self, Generator generator) {
  check_integers(self);
  const bool wide = self.scalar_type() == at::kLong || self.scalar_type() == at::kDouble;
  return integers(self, 0, static_cast<uint64_t>(integer_limit(self.scalar_type())) + 1, wide, generator);
}

at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  check_integers(self);
  const auto dtype = self.scalar_type();
  const int64_t limit = integer_limit(dtype);
  if (to) {
    TORCH_CHECK(from < *to, "random_ expects 'from' to be less than 'to', but got from=", from, " >= to=", *to);
    TORCH_CHECK(*to - 1 <= limit || c10::isFloatingType(dtype), "to - 1 is out of bounds for ", dtype_name(dtype));
  }
  const int64_t least = c10::isSignedType(dtype) ? -limit - 1 : 0;
  TORCH_CHECK(from >= least || c10::isFloatingType(dtype), "from is out of bounds for ", dtype_name(dtype));
  // Modulo 2^64: the whole range is the drawn word itself.
  const uint64_t end = to ? static_cast<uint64_t>(*to) : static_cast<uint64_t>(limit) + 1;
  const uint64_t count = end - static_cast<uint64_t>(from);
  return integers(self, count == 0 ? 0 : from, count, count == 0 || count >= 1 << 28, generator);
}

at::Tensor& random_to(at::Tensor& self, int64_t to, Generator generator) {
  return random_from(self, 0, to, std::move(generator));
}

// ---- dropout -------------------------------------------------------------------------------------------------------

KernelFamily& dropout_family() {
  static KernelFamily family("mojo_kernels.random.dropout:dropout[dtype={0}]", {kFloating});
  return family;
}

KernelFamily& dropout_backward_family() {
  static KernelFamily family("mojo_kernels.random.dropout:backward[dtype={0}]", {kFloating});
  return family;
}

at::Tensor dense_of(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& given, double p, std::optional<bool> train) {
  const auto dtype = given.scalar_type();
  if (!dropout_family().supports(dtype)) throw_dtype_not_implemented("native_dropout", &dtype, 1);
  const at::Tensor input = dense_of(given);
  at::Tensor out = at::empty_like(input), mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {out.copy_(input), mask.fill_(true)};
  if (p == 1) return {out.zero_(), mask.zero_()};
  if (input.numel() == 0) return {out, mask};
  const auto device = input.device().index();
  const Flat flat_out(out), flat_mask(mask), flat_input(input);
  CallBuilder call;
  for (const Flat* flat : {&flat_out, &flat_mask, &flat_input}) call.add(flat->view);
  for (const int64_t word : reserve_draws({}, device, input.numel(), 4)) call.word(word);
  call.word(float_bits(1.0 - p));
  CurrentDevice guard(device);
  call.launch(dropout_family().slot(dtype), device, "native_dropout");
  return {out, mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad_output, const at::Tensor& mask, double scale) {
  if (!grad_output.is_floating_point()) return grad_output.mul(mask).mul(scale);
  const auto dtype = grad_output.scalar_type();
  if (!dropout_backward_family().supports(dtype)) throw_dtype_not_implemented("native_dropout_backward", &dtype, 1);
  if (grad_output.device() != mask.device())
    throw_different_devices(grad_output.device(), mask.device(), "native_dropout_backward");
  const bool alike = grad_output.strides() == mask.strides() && mask.is_non_overlapping_and_dense();
  const at::Tensor gradient = alike ? grad_output : grad_output.contiguous();
  const at::Tensor kept = alike ? mask : mask.contiguous();
  at::Tensor result = at::empty_like(gradient);
  if (result.numel() == 0) return result;
  const auto device = gradient.device().index();
  const Flat flat_result(result), flat_gradient(gradient), flat_kept(kept);
  CallBuilder call;
  for (const Flat* flat : {&flat_result, &flat_gradient, &flat_kept}) call.add(flat->view);
  call.word(float_bits(scale));
  CurrentDevice guard(device);
  call.launch(dropout_backward_family().slot(dtype), device, "native_dropout_backward");
  return result;
}

}  // namespace

void register_random(const int64_t* blocks, int64_t devices) {
  max_blocks().assign(blocks, blocks + devices);
  const auto key = c10::DispatchKey::PrivateUse1;
#define TORCH_MOJO_KERNEL(function) c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function))
  register_kernel("uniform_", key, TORCH_MOJO_KERNEL(uniform_));
  register_kernel("normal_", key, TORCH_MOJO_KERNEL(normal_));
  register_kernel("log_normal_", key, TORCH_MOJO_KERNEL(log_normal_));
  register_kernel("exponential_", key, TORCH_MOJO_KERNEL(exponential_));
  register_kernel("cauchy_", key, TORCH_MOJO_KERNEL(cauchy_));
  register_kernel("geometric_", key, TORCH_MOJO_KERNEL(geometric_));
  register_kernel("bernoulli_.float", key, TORCH_MOJO_KERNEL(bernoulli_));
  register_kernel("bernoulli_.Tensor", key, TORCH_MOJO_KERNEL(bernoulli_tensor_));
  register_kernel("random_", key, TORCH_MOJO_KERNEL(random_));
  register_kernel("random_.from", key, TORCH_MOJO_KERNEL(random_from));
  register_kernel("random_.to", key, TORCH_MOJO_KERNEL(random_to));
  register_kernel("native_dropout", key, TORCH_MOJO_KERNEL(native_dropout));
  register_kernel("native_dropout_backward", key, TORCH_MOJO_KERNEL(native_dropout_backward));
#undef TORCH_MOJO_KERNEL
}

}  // namespace torch_mojo
