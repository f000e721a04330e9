// mojo::launch, through which ops written in Python call kernels.
#include "kernel_call.h"

namespace torch_mojo {
namespace {

// mojo::launch(str key, Tensor?[] tensors, int[] scalars) -> (): None is an absent tensor; scalars are encoded words.
void launch(c10::string_view key, const c10::List<std::optional<at::Tensor>>& tensors, at::IntArrayRef scalars) {
  CallBuilder call;
  c10::DeviceIndex device = -1;
  const std::string name(key);
  const size_t count = tensors.size();
  c10::SmallVector<at::Tensor, 8> alive;  // while the launch points to their sizes
  for (size_t i = 0; i < count; i++) {
    const std::optional<at::Tensor> item = tensors.get(i);
    if (!item || !item->defined()) {
      call.add_absent();
      continue;
    }
    if (device < 0 && item->device().type() == kMojo) device = item->device().index();
    call.add(*item);
    alive.push_back(*item);
  }
  TORCH_CHECK(device >= 0, "mojo::launch of ", name, " got no mojo tensor");
  for (const int64_t word : scalars) call.word(word);
  call.launch(mojo_slot(name.c_str()), device, name);
}

// What an op without a kernel does: torch's own message names neither dtypes nor a way out.
struct Unimplemented final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    std::string dtypes;
    for (size_t i = stack->size() - count; i < stack->size(); i++)
      for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
        dtypes += (dtypes.empty() ? "" : ", ") + std::string(dtype_name(tensor.scalar_type()));
      });
    const auto& name = op.operator_name();
    C10_THROW_ERROR(NotImplementedError,
                    name.name + (name.overload_name.empty() ? "" : "." + name.overload_name) +
                        " is not implemented on mojo (operands: " + (dtypes.empty() ? "no tensors" : dtypes) +
                        "). Run this op on the CPU with .cpu(), or add it: CONTRIBUTING.md shows how");
  }
};

}  // namespace

void register_launch() {
  static auto* fallback = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunctor<Unimplemented>(std::make_unique<Unimplemented>()), "torch-mojo-eager"));
  (void)fallback;
  register_kernel("mojo::launch", c10::DispatchKey::CompositeExplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(launch)));
}

}  // namespace torch_mojo
