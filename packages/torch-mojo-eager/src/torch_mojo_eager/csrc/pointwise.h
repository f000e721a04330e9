// Elementwise ops: torch's TensorIterator for the general case, a direct path for same-shape contiguous operands.
#pragma once
#include <ATen/TensorIterator.h>

#include <optional>
#include <string>
#include <vector>

#include "structured.h"

namespace torch_mojo {

enum class Promotion {
  kCommon = 0,     // inputs promote to a common dtype, which is the output's
  kFloat = 1,      // as kCommon; integers compute in the default float type
  kBool = 2,       // inputs promote; the output is bool
  kFirst = 3,      // no promotion: the inputs' dtypes must be equal
  kCondition = 4,  // the first input is a bool condition, the others promote
  kOutput = 5,     // the output's dtype computes: torch's meta function has decided it
};

// What a schema argument is to the kernel.
struct Operand {
  int argument;    // position in the schema
  bool is_tensor;  // a tensor, or a Scalar that becomes a 0-dim operand
};

struct PointwiseRow {
  std::string name;  // for messages
  KernelFamily kernel;
  Promotion promotion;
  std::vector<Operand> inputs;
  std::vector<int> scalars;   // schema positions
  std::vector<bool> numbers;  // which of these are of type Scalar
  bool raises_to_power = false;
  int output = -1;  // schema position of the argument that is written, -1 where the op returns a new tensor
  // What torch's own kernel checks before it computes; null: nothing.
  void (*check)(const c10::FunctionSchema& schema, const c10::IValue* arguments) = nullptr;
  bool real_of_complex = false;  // of complex numbers the result is real
  std::optional<c10::OperatorHandle> functional;

  PointwiseRow(std::string op, std::string key_template, std::string complex_key, uint64_t mask, Promotion promoted)
      : name(std::move(op)),
        kernel(std::move(key_template), {mask}, complex_key),
        promotion(promoted),
        real_of_complex(complex_key.find(".complex:real[") != std::string::npos) {}
};

// Names in `inputs` and `scalars` are schema arguments, separated by commas.
std::shared_ptr<PointwiseRow> make_pointwise_row(const std::string& name, const std::string& key_template,
                                                 const std::string& complex_key, uint64_t mask, Promotion promotion,
                                                 const std::string& inputs, const std::string& scalars);

// A TensorIterator's operands as the kernels take them: last dimension fastest, strides in elements. Owns the words
// that the views point to.
class IteratorLayout {
 public:
  explicit IteratorLayout(const at::TensorIteratorBase& iterator);
  MojoTensor view(const at::TensorIteratorBase& iterator, int operand) const;

 private:
  c10::SmallVector<int64_t, 48> words_;
};

// Computes into `out`, which may be undefined, and returns it. `arguments` are in the schema's order; `trusted` says
// that torch's meta function has allocated `out`.
at::Tensor run_pointwise(PointwiseRow& row, const c10::FunctionSchema& schema, const c10::IValue* arguments,
                         at::Tensor out, bool trusted);

// The direct path's registration; false where the schema has no typed form here.
bool register_direct(const std::string& overload, std::shared_ptr<PointwiseRow> row);

}  // namespace torch_mojo
