#include "pointwise.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace at::native {
TORCH_API bool resize_output(const at::Tensor& output, at::IntArrayRef shape);
}

namespace torch_mojo {

namespace {

constexpr int kMaxInputs = 4;

// Room for a scalar operand's value, read by the kernel through a HOST_SCALAR view.
struct alignas(16) ScalarStorage {
  char bytes[16];
};

// A tensor that enters TensorIterator as a number does in Python: it takes part in promotion with low priority.
at::Tensor wrapped_number(const at::Scalar& value) {
  const at::ScalarType dtype = value.isFloatingPoint() ? at::ScalarType::Double
                               : value.isBoolean()     ? at::ScalarType::Bool
                               : value.isComplex()     ? at::ScalarType::ComplexDouble
                                                       : at::ScalarType::Long;
  at::Tensor tensor = at::detail::empty_cpu({}, dtype);
  if (value.isComplex()) {
    *static_cast<c10::complex<double>*>(tensor.mutable_data_ptr()) = value.toComplexDouble();
  } else {
    store_scalar(value, dtype, tensor.mutable_data_ptr());
  }
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

int promotion_category(at::ScalarType dtype) {
  if (c10::isComplexType(dtype)) return 3;
  if (c10::isFloatingType(dtype)) return 2;
  return dtype == at::ScalarType::Bool ? 0 : 1;
}

int promotion_category(const at::Scalar& value) {
  return value.isComplex() ? 3 : value.isFloatingPoint() ? 2 : value.isBoolean() ? 0 : 1;
}

void check_gelu(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  const std::string& form = arguments[*schema.argumentIndexWithName("approximate")].toStringRef();
  TORCH_CHECK(form == "none" || form == "tanh", "approximate argument must be either none or tanh.");
}

void check_softshrink(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  const double lambda = arguments[*schema.argumentIndexWithName("lambd")].toScalar().toDouble();
  TORCH_CHECK(lambda >= 0, "lambda must be greater or equal to 0, but found to be ", lambda, ".");
}

}  // namespace

IteratorLayout::IteratorLayout(const at::TensorIteratorBase& iterator)
    : words_((iterator.ntensors() + 1) * iterator.ndim()) {
  const int ndim = iterator.ndim();
  for (int d = 0; d < ndim; d++) words_[d] = iterator.shape()[ndim - 1 - d];
  for (int t = 0; t < iterator.ntensors(); t++) {
    const auto itemsize = static_cast<int64_t>(c10::elementSize(iterator.dtype(t)));
    for (int d = 0; d < ndim; d++) words_[(t + 1) * ndim + d] = iterator.strides(t)[ndim - 1 - d] / itemsize;
  }
}

MojoTensor IteratorLayout::view(const at::TensorIteratorBase& iterator, int operand) const {
  const int ndim = iterator.ndim();
  return {iterator.data_ptr(operand),
          words_.data(),
          words_.data() + (operand + 1) * ndim,
          iterator.numel(),
          static_cast<int32_t>(iterator.dtype(operand)),
          static_cast<int16_t>(ndim),
          0};
}

std::shared_ptr<PointwiseRow> make_pointwise_row(const std::string& name, const std::string& key_template,
                                                 const std::string& complex_key, uint64_t mask, Promotion promotion,
                                                 const std::string& inputs, const std::string& scalars) {
  auto row = std::make_shared<PointwiseRow>(name, key_template, complex_key, mask, promotion);
  const auto& schema = find_operator(name).schema();
  for (const auto& input : split(inputs)) {
    const auto position = schema.argumentIndexWithName(input);
    TORCH_CHECK(position, "mojo: aten::", name, " has no argument ", input);
    const auto kind = schema.arguments()[*position].type()->kind();
    row->inputs.push_back({*position, kind != c10::TypeKind::NumberType});
  }
  if (name == "gelu.out") row->check = check_gelu;
  if (name == "softshrink.out") row->check = check_softshrink;
  row->raises_to_power = name == "pow.Tensor_Scalar_out";
  TORCH_CHECK(row->inputs.size() <= kMaxInputs, "mojo: too many inputs in the row of aten::", name);
  for (const auto& scalar : split(scalars)) {
    const auto position = schema.argumentIndexWithName(scalar);
    TORCH_CHECK(position, "mojo: aten::", name, " has no argument ", scalar);
    row->scalars.push_back(*position);
    // Limits may be outside of the dtype: those of hardtanh are int64 to torch, those of clamp its kernel checks.
    const bool is_limit = name.rfind("hardtanh", 0) == 0 || name.rfind("clamp", 0) == 0;
    row->numbers.push_back(!is_limit && holds_number(*schema.arguments()[*position].type()));
  }
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) row->output = static_cast<int>(i);
  }
  return row;
}

at::Tensor run_pointwise(PointwiseRow& row, const c10::FunctionSchema& schema, const c10::IValue* arguments,
                         at::Tensor out, bool trusted) {
  if (row.check != nullptr) row.check(schema, arguments);
  const size_t count = row.inputs.size();
  std::array<at::Tensor, kMaxInputs> inputs;
  for (size_t i = 0; i < count; i++) {
    const c10::IValue& value = arguments[row.inputs[i].argument];
    inputs[i] = row.inputs[i].is_tensor ? value.toTensor() : wrapped_number(value.toScalar());
  }
  if (row.promotion == Promotion::kCondition && row.output >= 0 && row.inputs[1].argument != row.output &&
      schema.name() == "aten::masked_fill_") {
    // The value is converted, whatever its type.
    TORCH_CHECK(inputs[1].dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                inputs[1].dim(), " dimension(s).");
    if (!row.inputs[1].is_tensor) {
      const at::Scalar value = arguments[row.inputs[1].argument].toScalar();
      inputs[1] = at::detail::empty_cpu({}, out.scalar_type());
      store_scalar(value, out.scalar_type(), inputs[1].mutable_data_ptr());
    } else if (inputs[1].scalar_type() != out.scalar_type()) {
      // Complex numbers must be real ones, which only a look at them tells.
      if (inputs[1].is_complex() && !out.is_complex()) check_number(inputs[1].item(), out.scalar_type());
      inputs[1] = inputs[1].toType(out.scalar_type());
    }
  }
  // Outputs whose dtype is not the one that computes.
  std::optional<at::ScalarType> fixed;
  if (row.promotion == Promotion::kBool) fixed = at::ScalarType::Bool;
  if (row.real_of_complex && inputs[0].is_complex()) fixed = c10::toRealValueType(inputs[0].scalar_type());
  // An output of another dtype than the op computes gets the converted result of a fresh one.
  auto through_temporary = [&]() {
    at::Tensor result = run_pointwise(row, schema, arguments, at::Tensor(), false);
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
    return out;
  };
  if (row.promotion == Promotion::kOutput && !trusted) {
    TORCH_INTERNAL_ASSERT(row.functional);
    const at::Tensor wanted = infer_outputs(*row.functional, schema, arguments).front();
    if (out.defined()) {
      TORCH_CHECK(c10::canCast(wanted.scalar_type(), out.scalar_type()), "result type ", wanted.scalar_type(),
                  " can't be cast to the desired output type ", out.scalar_type());
      if (out.scalar_type() != wanted.scalar_type()) return through_temporary();
    } else {
      const c10::Device device = arguments[row.inputs[0].argument].toTensor().device();
      out = empty(wanted.sizes(), wanted.scalar_type(), device.index());
    }
  }
  if (fixed && out.defined() && out.scalar_type() != *fixed) return through_temporary();

  for (bool converted = false;; converted = true) {
    at::TensorIteratorConfig config;
    config.set_check_mem_overlap(true).allow_cpu_scalars(true).add_output(out);
    for (size_t i = 0; i < count; i++) config.add_const_input(inputs[i]);
    switch (fixed ? Promotion::kBool : row.promotion) {
      case Promotion::kFloat:
      case Promotion::kCommon:
      case Promotion::kCondition:
        config.promote_inputs_to_common_dtype(true)
            .cast_common_dtype_to_outputs(true)
            .enforce_safe_casting_to_output(true)
            .promote_integer_inputs_to_float(row.promotion == Promotion::kFloat);
        break;
      case Promotion::kBool:
        config.promote_inputs_to_common_dtype(true);
        if (!out.defined()) config.declare_static_dtype(*fixed);
        break;
      case Promotion::kFirst:
        break;
      case Promotion::kOutput:
        config.check_all_same_dtype(false);
        break;
    }
    at::TensorIterator iterator = config.build();
    const at::ScalarType dtype = row.promotion == Promotion::kFirst    ? iterator.dtype(1)
                                 : row.promotion == Promotion::kOutput ? iterator.dtype(0)
                                                                       : iterator.common_dtype();
    if (C10_UNLIKELY(!row.kernel.supports(dtype))) throw_dtype_not_implemented(row.name, &dtype, 1);
    if (!fixed && iterator.dtype(0) != dtype) return through_temporary();

    bool again = false;
    for (size_t i = 0; i < count && !converted; i++) {
      const bool condition = row.promotion == Promotion::kCondition && i == 0;
      const at::ScalarType wanted = condition ? at::ScalarType::Bool : dtype;
      if (inputs[i].device().type() != kMojo || inputs[i].scalar_type() == wanted) continue;
      inputs[i] = inputs[i].toType(wanted);
      again = true;
    }
    at::Tensor result = out.defined() ? out : at::Tensor(iterator.output(0));
    if (again) {
      out = std::move(result);
      continue;
    }
    if (iterator.numel() == 0) return result;

    const IteratorLayout layout(iterator);
    std::array<ScalarStorage, kMaxInputs> scalars;
    CallBuilder call;
    const c10::DeviceIndex device = result.device().index();
    for (size_t t = 0; t <= count; t++) {
      MojoTensor view = layout.view(iterator, static_cast<int>(t));
      if (iterator.device(t).is_cpu()) {
        const bool condition = row.promotion == Promotion::kCondition && t == 1;
        const at::ScalarType wanted = condition ? at::ScalarType::Bool : dtype;
        convert_scalar(load_scalar(view.data, iterator.dtype(t)), wanted, &scalars[t - 1]);
        view.data = &scalars[t - 1];
        view.dtype = static_cast<int32_t>(wanted);
        view.flags = MOJO_HOST_SCALAR;
      }
      call.add(view);
    }
    for (size_t i = 0; i < row.scalars.size(); i++) {
      const int position = row.scalars[i];
      if (row.numbers[i] && !arguments[position].isNone()) check_number(arguments[position].toScalar(), dtype);
      if (c10::isComplexType(dtype) && arguments[position].isScalar()) {
        call.complex_number(arguments[position].toScalar());
      } else {
        call.scalar(arguments[position], *schema.arguments()[position].type());
      }
    }
    CurrentDevice guard(device);
    call.launch(row.kernel.slot(dtype), device, row.name);
    return result;
  }
}

namespace {

// The overload's own form (functional, in-place or out) in terms of run_pointwise.
struct PointwiseKernel final : c10::OperatorKernel {
  explicit PointwiseKernel(std::shared_ptr<PointwiseRow> shared) : row(std::move(shared)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const size_t base = stack->size() - count;
    at::Tensor out = row->output >= 0 ? (*stack)[base + row->output].toTensor() : at::Tensor();
    at::Tensor result = run_pointwise(*row, op.schema(), stack->data() + base, std::move(out), TrustOutputs::take());
    stack->resize(base);
    stack->emplace_back(std::move(result));
  }

  std::shared_ptr<PointwiseRow> row;
};

// ---- the direct path ----

struct DirectArguments {
  std::array<const at::Tensor*, 3> tensors{};
  std::array<const at::Scalar*, 2> scalars{};
  int n_tensors = 0, n_scalars = 0;

  void add(const at::Tensor& tensor) { tensors[n_tensors++] = &tensor; }
  void add(const at::Scalar& scalar) { scalars[n_scalars++] = &scalar; }
};

// Everything about a row that the direct path asks, in its own order of arguments.
struct DirectPlan {
  std::shared_ptr<PointwiseRow> row;
  struct Source {
    bool is_tensor;
    int index;  // among the schema's tensors or scalars
  };
  std::array<Source, kMaxInputs> inputs{};
  std::array<int, 2> scalars{};
  int n_inputs = 0, n_scalars = 0;
};

const int64_t kUnitStride = 1;

inline MojoTensor flat_view(const c10::TensorImpl* impl, const int64_t* numel) {
  MojoTensor view;
  view.data = static_cast<char*>(const_cast<void*>(impl->storage().data())) +
              impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
  view.sizes = numel;
  view.strides = &kUnitStride;
  view.numel = *numel;
  view.dtype = static_cast<int32_t>(c10::typeMetaToScalarType(impl->dtype()));
  view.ndim = 1;
  view.flags = 0;
  return view;
}

const int64_t kZeroStride = 0;

// Runs the op if all operands are contiguous, of one shape and dtype, or numbers that do not change the dtype.
// `in_place`: writes to the first tensor. Returns false where the general path must decide.
bool run_direct(const DirectPlan& plan, const DirectArguments& arguments, bool in_place, at::Tensor* result) {
  PointwiseRow& row = *plan.row;
  const at::Tensor& self = *arguments.tensors[0];
  const c10::TensorImpl* self_impl = self.unsafeGetTensorImpl();
  if (self_impl->device_type() != kMojo || !self_impl->is_contiguous()) return false;
  const at::ScalarType dtype = c10::typeMetaToScalarType(self_impl->dtype());
  const int category = promotion_category(dtype);
  if (!row.kernel.supports(dtype) || category == 3 || (row.promotion == Promotion::kFloat && category != 2))
    return false;
  if (in_place && row.promotion == Promotion::kBool && dtype != at::ScalarType::Bool) return false;
  const int64_t numel = self_impl->numel();
  if (numel == 0) return false;
  const c10::DeviceIndex device = self_impl->device().index();

  std::array<ScalarStorage, kMaxInputs> storage;
  std::array<MojoTensor, kMaxInputs + 1> views;
  for (int i = 0; i < plan.n_inputs; i++) {
    const auto source = plan.inputs[i];
    MojoTensor& view = views[i + 1];
    if (source.is_tensor) {
      const at::Tensor& tensor = *arguments.tensors[source.index];
      const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      if (impl == self_impl) {
        view = flat_view(impl, &numel);
        continue;
      }
      if (impl->device_type() == kMojo) {
        if (impl->dtype() != self_impl->dtype() || impl->device() != self_impl->device() || !impl->is_contiguous() ||
            impl->sizes() != self_impl->sizes())
          return false;
        view = flat_view(impl, &numel);
        if (in_place && impl->storage().unsafeGetStorageImpl() == self_impl->storage().unsafeGetStorageImpl())
          return false;  // may overlap partially
        continue;
      }
      if (impl->device_type() != c10::DeviceType::CPU || impl->dim() != 0 ||
          promotion_category(c10::typeMetaToScalarType(impl->dtype())) > category ||
          (self_impl->dim() == 0 && !impl->is_wrapped_number()))
        return false;
      convert_scalar(load_scalar(tensor.const_data_ptr(), tensor.scalar_type()), dtype, &storage[i]);
    } else {
      const at::Scalar& value = *arguments.scalars[source.index];
      if (promotion_category(value) > category) return false;
      convert_scalar(value, dtype, &storage[i]);
    }
    view = {&storage[i], &numel, &kZeroStride, numel, static_cast<int32_t>(dtype), 1, MOJO_HOST_SCALAR};
  }
  CallBuilder call;
  at::Tensor out;
  if (in_place) {
    views[0] = flat_view(self_impl, &numel);
  } else {
    out = empty(self_impl->sizes(), row.promotion == Promotion::kBool ? at::ScalarType::Bool : dtype, device);
    views[0] = flat_view(out.unsafeGetTensorImpl(), &numel);
  }
  for (int i = 0; i <= plan.n_inputs; i++) call.add(views[i]);
  for (int i = 0; i < plan.n_scalars; i++) {
    const at::Scalar& value = *arguments.scalars[plan.scalars[i]];
    // A float alpha or a negative exponent for integers: torch has the message.
    if (promotion_category(value) > category || (row.raises_to_power && category < 2 && value.toLong() < 0))
      return false;
    if (row.numbers[i]) check_number(value, dtype);
    call.number(value);
  }
  call.launch(row.kernel.slot(dtype), device, row.name);
  if (!in_place) *result = std::move(out);
  return true;
}

template <class... Args>
struct DirectFunctional final : c10::OperatorKernel {
  using Signature = at::Tensor(Args...);
  DirectFunctional(DirectPlan p, c10::OperatorHandle h) : plan(std::move(p)), op(h.typed<Signature>()) {}
  at::Tensor operator()(Args... args) {
    DirectArguments arguments;
    (arguments.add(args), ...);
    at::Tensor result;
    if (C10_LIKELY(run_direct(plan, arguments, false, &result))) return result;
    TrustOutputs trust;
    return op.redispatch(c10::DispatchKeySet(kDefaultKernels), std::forward<Args>(args)...);
  }
  DirectPlan plan;
  c10::TypedOperatorHandle<Signature> op;
};

template <class... Args>
struct DirectInPlace final : c10::OperatorKernel {
  using Signature = at::Tensor&(at::Tensor&, Args...);
  DirectInPlace(DirectPlan p, c10::OperatorHandle h) : plan(std::move(p)), op(h.typed<Signature>()) {}
  at::Tensor& operator()(at::Tensor& self, Args... args) {
    DirectArguments arguments;
    arguments.add(self);
    (arguments.add(args), ...);
    if (C10_LIKELY(run_direct(plan, arguments, true, nullptr))) return self;
    TrustOutputs trust;
    return op.redispatch(c10::DispatchKeySet(kDefaultKernels), self, std::forward<Args>(args)...);
  }
  DirectPlan plan;
  c10::TypedOperatorHandle<Signature> op;
};

using T = const at::Tensor&;
using S = const at::Scalar&;

// `form` spells the schema's arguments: T for tensors, S for numbers.
template <class... Args>
bool register_if(const char* form, const std::string& spelled, bool in_place, const std::string& overload,
                 DirectPlan plan, const c10::OperatorHandle& op) {
  if (spelled != form) return false;
  if (in_place) {
    register_kernel(overload, c10::DispatchKey::PrivateUse1,
                    c10::KernelFunction::makeFromUnboxedFunctor<false, DirectInPlace<Args...>>(
                        std::make_unique<DirectInPlace<Args...>>(std::move(plan), op)));
  } else {
    register_kernel(overload, c10::DispatchKey::PrivateUse1,
                    c10::KernelFunction::makeFromUnboxedFunctor<false, DirectFunctional<T, Args...>>(
                        std::make_unique<DirectFunctional<T, Args...>>(std::move(plan), op)));
  }
  return true;
}

}  // namespace

bool register_direct(const std::string& overload, std::shared_ptr<PointwiseRow> row) {
  const auto op = find_operator(overload);
  if (!op.hasComputedKernelForDispatchKey(kDefaultKernels) || row->check != nullptr) return false;
  const auto& out_schema = find_operator(row->name).schema();
  const auto& schema = op.schema();
  DirectPlan plan;
  std::string spelled;
  for (const auto& argument : schema.arguments()) {
    const auto kind = argument.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::NumberType) return false;
    spelled += kind == c10::TypeKind::TensorType ? 'T' : 'S';
  }
  auto source_of = [&](int out_position) -> std::optional<DirectPlan::Source> {
    const auto position = schema.argumentIndexWithName(out_schema.arguments()[out_position].name());
    if (!position) return std::nullopt;
    const bool tensor = spelled[*position] == 'T';
    const auto before = std::count(spelled.begin(), spelled.begin() + *position, spelled[*position]);
    return DirectPlan::Source{tensor, static_cast<int>(before)};
  };
  for (const auto& input : row->inputs) {
    const auto source = source_of(input.argument);
    if (!source) return false;
    plan.inputs[plan.n_inputs++] = *source;
  }
  if (row->scalars.size() > plan.scalars.size() || row->promotion == Promotion::kCondition) return false;
  for (const int position : row->scalars) {
    const auto source = source_of(position);
    if (!source || source->is_tensor) return false;
    plan.scalars[plan.n_scalars++] = source->index;
  }
  plan.row = std::move(row);
  const auto* alias = schema.arguments()[0].alias_info();
  const bool in_place = alias != nullptr && alias->isWrite();
  return register_if<>("T", spelled, in_place, overload, plan, op) ||
         register_if<T>("TT", spelled, in_place, overload, plan, op) ||
         register_if<S>("TS", spelled, in_place, overload, plan, op) ||
         register_if<T, S>("TTS", spelled, in_place, overload, plan, op) ||
         register_if<T, T>("TTT", spelled, in_place, overload, plan, op) ||
         register_if<T, T, S>("TTTS", spelled, in_place, overload, plan, op) ||
         register_if<S, S>("TSS", spelled, in_place, overload, plan, op);
}

}  // namespace torch_mojo

// Registers the row for `name` itself and for `forms`, the functional and in-place overloads that belong to it.
TORCH_MOJO_API int32_t torch_mojo_register_pointwise(const char* name, const char* key_template,
                                                     const char* complex_key, uint64_t mask, int32_t promotion,
                                                     const char* inputs, const char* scalars, const char* forms) {
  using namespace torch_mojo;
  return shield([&] {
    auto row =
        make_pointwise_row(name, key_template, complex_key, mask, static_cast<Promotion>(promotion), inputs, scalars);
    const auto register_boxed = [](const char* overload, std::shared_ptr<PointwiseRow> shared) {
      register_kernel(overload, c10::DispatchKey::PrivateUse1,
                      c10::KernelFunction::makeFromBoxedFunctor<PointwiseKernel>(
                          std::make_unique<PointwiseKernel>(std::move(shared))));
    };
    for (const auto& form : split(forms)) {
      const auto op = find_operator(form);
      if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
      if (!row->functional) row->functional = op;
      if (register_direct(form, row)) continue;
      if (op.hasComputedKernelForDispatchKey(kDefaultKernels)) {
        register_structured_form(form);
        continue;
      }
      register_boxed(form.c_str(),
                     make_pointwise_row(form, key_template, complex_key, mask, row->promotion, inputs, scalars));
    }
    register_boxed(name, row);
  });
}
