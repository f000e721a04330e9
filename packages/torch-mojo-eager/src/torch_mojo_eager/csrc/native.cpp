// Ops whose schema arguments map one to one to a kernel call (rows of type Native).
//
// The row names an `.out` overload. Three forms come from it:
// - functional and in-place, of structured ops: torch's own kernel checks the arguments and allocates the output, then
// calls
//   the `.out` overload, which trusts what it gets;
// - functional, of other ops: the op's meta function, of meta.cpp or torch's, gives the outputs to allocate;
// - `.out` called by the user: the meta function runs first, then the given outputs are checked and resized.
#include <ATen/MemoryOverlap.h>

#include <map>

#include "structured.h"

namespace at::native {
TORCH_API bool resize_output(const at::Tensor& output, at::IntArrayRef shape);
}

namespace torch_mojo {

namespace {

struct Source {
  enum Kind { kTensor, kScalar, kLength, kConstant } kind;
  int argument;           // its position in the schema; of kConstant the value
  bool in_dtype = false;  // a number that torch reads in the first tensor's dtype
};

// Arguments that are numbers of that kind; exponents of norms and limits of ranges are not.
bool is_in_dtype(const std::string& name) { return name == "value" || name == "alpha" || name == "beta"; }

struct NativeRow {
  NativeRow(std::string op, std::string key_template, std::vector<uint64_t> masks)
      : name(std::move(op)), kernel(std::move(key_template), std::move(masks)) {}

  std::string name;
  KernelFamily kernel;
  std::vector<Source> tensors, scalars;
  std::vector<int> dtype_arguments;  // the tensors whose dtypes fill the key's placeholders
  std::vector<bool> indices;         // which of these are named index
  std::vector<int> outputs;          // schema positions of the written arguments, in order
  int updated = -1;                  // schema position of what the in-place form writes: the output may be the same
  bool promotes = false;             // inputs of another dtype than the first of those are converted; else refused
  std::vector<std::pair<int, at::ScalarType>> expected_dtypes;  // of other inputs; Undefined: of the first of those
  std::optional<c10::OperatorHandle> functional;
  MetaFunction meta = nullptr;                 // of meta.cpp; else torch's own
  std::optional<c10::OperatorHandle> complex;  // the op of the library mojo_complex that computes complex tensors

  // What an argument must have or be converted to; Undefined: anything.
  at::ScalarType expected_dtype(int argument, at::ScalarType first) const {
    for (const auto& [position, dtype] : expected_dtypes)
      if (position == argument) return dtype == at::ScalarType::Undefined ? first : dtype;
    return at::ScalarType::Undefined;
  }
};

// torch takes classes of either dtype.
bool converts(const NativeRow& row, const at::Tensor& tensor, at::ScalarType expected) {
  return row.promotes || (expected == at::kLong && tensor.scalar_type() == at::kByte);
}

// Fills in the dtypes of the row's kernel, and checks that the other inputs have them.
std::array<at::ScalarType, 4> kernel_dtypes(const NativeRow& row, const c10::FunctionSchema& schema,
                                            const c10::IValue* arguments) {
  std::array<at::ScalarType, 4> dtypes{};
  for (size_t i = 0; i < row.dtype_arguments.size(); i++) {
    bool found = false;
    for_each_tensor(arguments[row.dtype_arguments[i]], [&](const at::Tensor& tensor) {
      if (!found) dtypes[i] = tensor.scalar_type();
      found = true;
    });
    // An absent optional tensor: any dtype does, so take the first's.
    if (!found) dtypes[i] = dtypes[0];
  }
  for (const auto& [argument, other] : row.expected_dtypes) {
    const at::ScalarType expected = other == at::ScalarType::Undefined ? dtypes[0] : other;
    for_each_tensor(arguments[argument], [&, position = argument, other = other](const at::Tensor& tensor) {
      TORCH_CHECK(tensor.scalar_type() == expected || converts(row, tensor, expected), "aten::", row.name,
                  " on mojo: expected ", schema.arguments()[position].name(), " to have the ",
                  other == at::ScalarType::Undefined ? "same dtype as the other operands, " : "dtype ",
                  dtype_name(expected), ", but got ", dtype_name(tensor.scalar_type()), "; convert with .to()");
    });
  }
  for (size_t i = 0; i < row.dtype_arguments.size(); i++) {
    if (!row.kernel.supports(dtypes[i], i))
      throw_dtype_not_implemented(row.name, dtypes.data(), row.dtype_arguments.size());
  }
  return dtypes;
}

// The outputs of the row's op on meta tensors, undefined where they are not asked for.
std::vector<at::Tensor> meta_outputs(const NativeRow& row, const c10::FunctionSchema& schema,
                                     const c10::IValue* arguments) {
  return row.meta != nullptr ? row.meta(arguments) : infer_outputs(*row.functional, schema, arguments);
}

// Whether the first dtype is complex64 and the kernel is none for it.
bool computes_complex(const NativeRow& row, const c10::IValue* arguments) {
  bool complex = false;
  for_each_tensor(arguments[row.dtype_arguments[0]],
                  [&](const at::Tensor& tensor) { complex = complex || tensor.is_complex(); });
  return complex;
}

void launch(NativeRow& row, const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  c10::DeviceIndex device = -1;
  for (const auto& source : row.tensors) {
    for_each_tensor(arguments[source.argument], [&](const at::Tensor& tensor) {
      if (device < 0 && tensor.device().type() == kMojo) device = tensor.device().index();
    });
  }
  TORCH_CHECK(device >= 0, "mojo: aten::", row.name, " got no mojo tensor");
  const auto dtypes = kernel_dtypes(row, schema, arguments);
  std::vector<at::Tensor> converted;
  CallBuilder call;
  for (const auto& source : row.tensors) {
    const c10::IValue& value = arguments[source.argument];
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) {
        call.add_absent();
        continue;
      }
      const at::ScalarType dtype = row.expected_dtype(source.argument, dtypes[0]);
      const bool fits = dtype == at::ScalarType::Undefined || dtype == tensor.scalar_type();
      call.add(fits ? tensor : converted.emplace_back(tensor.to(dtype)));
    } else if (value.isNone()) {
      call.add_absent();
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();  // keeps the tensors alive through the list
      for (size_t i = 0; i < list.size(); i++) {
        const at::Tensor tensor = list.get(i);
        call.add(tensor);
      }
    } else {
      for (const auto& item : value.toListRef()) {
        if (item.isNone() || !item.toTensor().defined()) {
          call.add_absent();
        } else {
          call.add(item.toTensor());
        }
      }
    }
  }
  for (const auto& source : row.scalars) {
    if (source.kind == Source::kConstant) {
      call.word(source.argument);
      continue;
    }
    const c10::IValue& value = arguments[source.argument];
    if (source.kind == Source::kLength) {
      call.word(static_cast<int64_t>(value.isTensorList() ? value.toTensorList().size() : value.toListRef().size()));
    } else {
      if (source.in_dtype && !value.isNone()) check_number(value.toScalar(), dtypes[0]);
      call.scalar(value, *schema.arguments()[source.argument].type());
    }
  }
  CurrentDevice guard(device);
  call.launch(row.kernel.slot(dtypes.data(), row.dtype_arguments.size()), device, row.name);
}

void prepare_output(const at::Tensor& out, const at::Tensor& wanted, const at::Tensor& device_of) {
  TORCH_CHECK(out.scalar_type() == wanted.scalar_type(), "Expected out tensor to have dtype ", wanted.dtype(),
              ", but got ", out.dtype(), " instead");
  TORCH_CHECK(out.device() == device_of.device(), "Expected out tensor to have device ", device_of.device(),
              ", but got ", out.device(), " instead");
  at::native::resize_output(out, wanted.sizes());
  at::assert_no_internal_overlap(out);
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool lie_together(const at::Tensor& a, const at::Tensor& b) {
  const auto status = at::get_overlap_status(a, b);
  return status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
}

struct OutKernel final : c10::OperatorKernel {
  OutKernel(std::shared_ptr<NativeRow> shared, bool one_by_one) : row(std::move(shared)), has_default(one_by_one) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    const size_t base = stack->size() - count;
    c10::IValue* arguments = stack->data() + base;
    if (has_default && !uniform(arguments)) return op.redispatchBoxed(c10::DispatchKeySet(kDefaultKernels), stack);
    const bool trusted = TrustOutputs::take();
    widen_indices(arguments);
    if (!trusted && (row->functional || row->meta != nullptr)) check_outputs(schema, arguments);
    if (row->complex && computes_complex(*row, arguments)) return row->complex->callBoxed(stack);
    launch(*row, schema, arguments);
    if (row->outputs.size() == 1 && schema.returns().size() == 1) {
      c10::IValue result = std::move(arguments[row->outputs[0]]);
      stack->resize(base);
      stack->push_back(std::move(result));
      return;
    }
    std::vector<c10::IValue> results;
    if (!schema.returns().empty())
      for (const int output : row->outputs) results.push_back(std::move(arguments[output]));
    stack->resize(base);
    for (auto& result : results) stack->push_back(std::move(result));
  }

  // Whether one launch can take the lists: corresponding tensors have the same sizes, all have one dtype and device.
  bool uniform(const c10::IValue* arguments) const {
    at::ArrayRef<c10::IValue> first;
    for (const auto& source : row->tensors) {
      if (!arguments[source.argument].isTensorList()) continue;
      const at::ArrayRef<c10::IValue> list = arguments[source.argument].toListRef();  // copies no tensor
      if (first.empty()) {
        first = list;
        if (first.empty() || !row->kernel.supports(first[0].toTensor().scalar_type(), 0)) return false;
      }
      if (list.size() != first.size()) return false;
      const at::Tensor& model = first[0].toTensor();
      for (size_t i = 0; i < list.size(); i++) {
        const at::Tensor& tensor = list[i].toTensor();
        if (tensor.sizes() != first[i].toTensor().sizes() || tensor.scalar_type() != model.scalar_type() ||
            tensor.device() != model.device())
          return false;
      }
    }
    return true;
  }

  // torch takes indices of any integer type where the kernel has int64 and int32.
  void widen_indices(c10::IValue* arguments) const {
    for (size_t i = 1; i < row->dtype_arguments.size(); i++) {
      c10::IValue& value = arguments[row->dtype_arguments[i]];
      if (!row->indices[i] || !value.isTensor() || row->kernel.supports(value.toTensor().scalar_type(), i)) continue;
      const at::Tensor& index = value.toTensor();
      if (c10::isIntegralType(index.scalar_type(), /*includeBool=*/false)) value = index.toType(at::kLong);
    }
  }

  void check_outputs(const c10::FunctionSchema& schema, const c10::IValue* arguments) const {
    const auto wanted = meta_outputs(*row, schema, arguments);
    const at::Tensor* input = nullptr;
    for (size_t i = 0; i < schema.arguments().size() && input == nullptr; i++) {
      if (std::find(row->outputs.begin(), row->outputs.end(), i) != row->outputs.end()) continue;
      if (arguments[i].isTensor() && arguments[i].toTensor().defined()) input = &arguments[i].toTensor();
    }
    for (size_t i = 0; i < row->outputs.size() && i < wanted.size(); i++) {
      const at::Tensor& out = arguments[row->outputs[i]].toTensor();
      prepare_output(out, wanted[i], input != nullptr ? *input : out);
      for (size_t k = 0; k < i; k++)
        TORCH_CHECK_VALUE(!lie_together(out, arguments[row->outputs[k]].toTensor()), "aten::", row->name,
                          ": the out= tensors must not overlap");
      for (size_t k = 0; k < schema.arguments().size(); k++) {
        if (std::find(row->outputs.begin(), row->outputs.end(), k) != row->outputs.end()) continue;
        for_each_tensor(arguments[k], [&](const at::Tensor& tensor) {
          if (static_cast<int>(k) != row->updated || !same_memory(out, tensor)) at::assert_no_overlap(out, tensor);
        });
      }
    }
  }

  std::shared_ptr<NativeRow> row;
  bool has_default;  // of ops on lists, torch's own kernel, which calls an op for each tensor
};

// The functional form of a structured op, for schemas that hot ops have, without boxing the arguments.
template <class Signature>
struct TypedStructuredForm;
template <class... Args>
struct TypedStructuredForm<at::Tensor(Args...)> final : c10::OperatorKernel {
  explicit TypedStructuredForm(const c10::OperatorHandle& h) : op(h.typed<at::Tensor(Args...)>()) {}
  at::Tensor operator()(Args... args) {
    TrustOutputs trust;
    return op.redispatch(c10::DispatchKeySet(kDefaultKernels), std::forward<Args>(args)...);
  }
  c10::TypedOperatorHandle<at::Tensor(Args...)> op;
};

// `spelled` is the schema's argument types as text, e.g. "Tensor,Tensor".
template <class Signature>
bool register_typed(const char* form, const std::string& spelled, const std::string& name,
                    const c10::OperatorHandle& op) {
  if (spelled != form) return false;
  register_kernel(name, c10::DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromUnboxedFunctor<false, TypedStructuredForm<Signature>>(
                      std::make_unique<TypedStructuredForm<Signature>>(op)));
  return true;
}

std::string spell_arguments(const c10::FunctionSchema& schema) {
  std::string spelled;
  for (const auto& argument : schema.arguments()) spelled += (spelled.empty() ? "" : ",") + argument.type()->str();
  return spelled;
}

// The functional form of an op that torch does not allocate for.
struct InferredForm final : c10::OperatorKernel {
  InferredForm(std::shared_ptr<NativeRow> shared, c10::OperatorHandle out) : row(std::move(shared)), out_op(out) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const size_t base = stack->size() - schema.arguments().size();
    const c10::IValue* arguments = stack->data() + base;
    const auto metas = meta_outputs(*row, schema, arguments);
    c10::DeviceIndex device = -1;
    for (size_t i = 0; i < schema.arguments().size(); i++)
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
        if (device < 0 && tensor.device().type() == kMojo) device = tensor.device().index();
      });
    torch::jit::Stack out_arguments;
    size_t next = 0;
    std::vector<c10::IValue> outputs;
    for (const auto& argument : out_op.schema().arguments()) {
      if (const auto position = schema.argumentIndexWithName(argument.name())) {
        out_arguments.push_back(arguments[*position]);
      } else {
        TORCH_INTERNAL_ASSERT(next < metas.size());
        outputs.emplace_back(metas[next].defined() ? empty_like_meta(metas[next], device) : at::Tensor());
        next++;
        out_arguments.push_back(outputs.back());
      }
    }
    if (row->complex && computes_complex(*row, out_arguments.data())) {
      row->complex->callBoxed(&out_arguments);
    } else {
      launch(*row, out_op.schema(), out_arguments.data());
    }
    stack->resize(base);
    for (auto& output : outputs) stack->push_back(std::move(output));
  }

  std::shared_ptr<NativeRow> row;
  c10::OperatorHandle out_op;
};

int argument_index(const c10::FunctionSchema& schema, const std::string& name) {
  const auto position = schema.argumentIndexWithName(name);
  TORCH_CHECK(position, "mojo: ", schema.name(), " has no argument ", name);
  return *position;
}

}  // namespace
}  // namespace torch_mojo

// `tensors`, `scalars`, `dtype_arguments`: schema arguments separated by commas; "len(x)" and "=1" in scalars. `masks`:
// one per dtype argument. `functional`, `in_place`: the overloads that belong to the row's, or empty. `other_dtypes`:
// "target=4,..": the dtype's code, or nothing.
TORCH_MOJO_API int32_t torch_mojo_register_native(const char* name, const char* key_template, const uint64_t* masks,
                                                  const char* tensors, const char* scalars, const char* dtype_arguments,
                                                  const char* functional, const char* in_place,
                                                  const char* other_dtypes, int32_t promotes) {
  using namespace torch_mojo;
  return shield([&] {
    const auto op = find_operator(name);
    const auto& schema = op.schema();
    const auto dtype_names = split(dtype_arguments);
    auto row =
        std::make_shared<NativeRow>(name, key_template, std::vector<uint64_t>(masks, masks + dtype_names.size()));
    for (const auto& tensor : split(tensors)) row->tensors.push_back({Source::kTensor, argument_index(schema, tensor)});
    for (const auto& scalar : split(scalars)) {
      if (scalar[0] == '=') {
        row->scalars.push_back({Source::kConstant, std::stoi(scalar.substr(1))});
      } else if (scalar.rfind("len(", 0) == 0) {
        row->scalars.push_back({Source::kLength, argument_index(schema, scalar.substr(4, scalar.size() - 5))});
      } else {
        const int argument = argument_index(schema, scalar);
        const bool in_dtype = is_in_dtype(scalar) && holds_number(*schema.arguments()[argument].type());
        row->scalars.push_back({Source::kScalar, argument, in_dtype});
      }
    }
    const auto parts = op.operator_name();
    const std::string complex_name = "mojo_complex" + parts.name.substr(parts.name.find("::"));
    row->complex = c10::Dispatcher::singleton().findSchema({complex_name, parts.overload_name});
    for (const auto& dtype : dtype_names) {
      row->dtype_arguments.push_back(argument_index(schema, dtype));
      row->indices.push_back(dtype == "index");
    }
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) row->outputs.push_back(static_cast<int>(i));
    }
    row->promotes = promotes != 0;
    std::map<std::string, std::string> others;
    for (const auto& other : split(other_dtypes)) {
      const auto equals = other.find('=');
      others[other.substr(0, equals)] = other.substr(equals + 1);
    }
    const auto contains = [](const std::vector<int>& list, int value) {
      return std::find(list.begin(), list.end(), value) != list.end();
    };
    for (const auto& source : row->tensors) {
      const int argument = source.argument;
      const auto other = others.find(schema.arguments()[argument].name());
      if (row->dtype_arguments.empty() || contains(row->dtype_arguments, argument) ||
          contains(row->outputs, argument) || (other != others.end() && other->second.empty()))
        continue;
      const auto dtype =
          other == others.end() ? at::ScalarType::Undefined : static_cast<at::ScalarType>(std::stoi(other->second));
      row->expected_dtypes.emplace_back(argument, dtype);
    }
    auto boxed = [](auto kernel) {
      using Kernel = typename decltype(kernel)::element_type;
      return c10::KernelFunction::makeFromBoxedFunctor<Kernel>(std::move(kernel));
    };
    const auto key = c10::DispatchKey::PrivateUse1;
    for (const std::string& form : {std::string(functional), std::string(in_place)}) {
      if (form.empty()) continue;
      const auto form_op = find_operator(form);
      if (form == functional) row->meta = find_meta(form);
      if (form == in_place) row->updated = argument_index(schema, form_op.schema().arguments()[0].name());
      if (form_op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
      if (form == functional) row->functional = form_op;
      if (form_op.hasComputedKernelForDispatchKey(kDefaultKernels) && (row->meta == nullptr || form == in_place)) {
        using Tensor = const at::Tensor&;
        using Dims = at::OptionalIntArrayRef;
        using Dtype = std::optional<at::ScalarType>;
        const std::string spelled = spell_arguments(form_op.schema());
        if (form_op.schema().returns().size() != 1 || form == in_place ||
            (!register_typed<at::Tensor(Tensor, Tensor)>("Tensor,Tensor", spelled, form, form_op) &&
             !register_typed<at::Tensor(Tensor, Dims, bool, Dtype)>("Tensor,int[]?,bool,int?", spelled, form, form_op)))
          register_structured_form(form);
      } else if (form == functional) {
        register_kernel(form, key, boxed(std::make_unique<InferredForm>(row, op)));
      }
    }
    const bool on_lists = !row->outputs.empty() && schema.arguments()[row->outputs[0]].type()->str() == "Tensor[]";
    const bool has_default = on_lists && op.hasComputedKernelForDispatchKey(kDefaultKernels);
    // Torch's composite calls the functional form, and copies.
    if (row->meta != nullptr && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return;
    register_kernel(name, key, boxed(std::make_unique<OutKernel>(row, has_default)));
  });
}
