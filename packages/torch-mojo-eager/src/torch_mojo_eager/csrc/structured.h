// Structured ops: torch's own kernels for the functional and in-place forms check the arguments, allocate the output
// and then call the out form, which is ours.
#pragma once
#include "kernel_call.h"

namespace torch_mojo {

// Those kernels are reached through a backend key that nobody registers for.
constexpr auto kDefaultKernels = c10::DispatchKey::PrivateUse2;

// While one lives, the next out form that runs gets an output that torch has checked and allocated.
class TrustOutputs {
 public:
  TrustOutputs() : previous_(trusted_) { trusted_ = true; }
  ~TrustOutputs() { trusted_ = previous_; }
  TrustOutputs(const TrustOutputs&) = delete;
  TrustOutputs& operator=(const TrustOutputs&) = delete;

  // Whether this call's outputs are trusted; calls within it start untrusted.
  static bool take() { return std::exchange(trusted_, false); }

 private:
  bool previous_;
  static thread_local bool trusted_;
};

// Registers torch's own kernel for a functional or in-place overload, with trusted outputs.
void register_structured_form(const std::string& overload);

// Runs the functional form on meta tensors: torch's own checks, and what the outputs must be. `arguments` belong to
// `schema`, that of another form.
std::vector<at::Tensor> infer_outputs(const c10::OperatorHandle& functional, const c10::FunctionSchema& schema,
                                      const c10::IValue* arguments);

// A meta function of ours: checks an op's arguments, in the order of its schema, and returns its outputs as meta
// tensors, undefined where they are not asked for.
using MetaFunction = std::vector<at::Tensor> (*)(const c10::IValue* arguments);

// That of a functional overload; nullptr where torch's own says all.
MetaFunction find_meta(const std::string& functional);

}  // namespace torch_mojo
