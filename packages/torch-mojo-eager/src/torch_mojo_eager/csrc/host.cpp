// Host memory as mojo tensors and back, without copies, where the device is the CPU: what hands tensors to another
// engine of this process, such as a compiled graph, needs both.
#include <ATen/ops/from_blob.h>

#include "common.h"

namespace torch_mojo {
namespace {

void check_is_cpu() {
  TORCH_CHECK_NOT_IMPLEMENTED(mojo_is_cpu(), "mojo: only a device that is the CPU shares its memory with the host");
}

// A CPU tensor with the same memory. The caller waits for the device's work before it reads.
at::Tensor host_alias(const at::Tensor& self) {
  check_is_cpu();
  TORCH_CHECK(self.device().type() == kMojo, "host_alias: expected a mojo tensor, got one on ", self.device());
  return at::from_blob(
      self.data_ptr(), self.sizes(), self.strides(), [self](void*) {}, self.options().device(at::kCPU));
}

void release(void* host) { delete static_cast<at::Tensor*>(host); }

// A mojo tensor with the memory of a CPU tensor, which is kept until work queued on the current stream is done.
at::Tensor from_host(const at::Tensor& host, int64_t device) {
  check_is_cpu();
  TORCH_CHECK(host.device().is_cpu(), "from_host: expected a CPU tensor, got one on ", host.device());
  const auto index = static_cast<c10::DeviceIndex>(device);
  auto* kept = new at::Tensor(host);
  auto deleter = [kept, index](void*) {
    const int64_t stream = current_stream(index);
    if (mojo_stream_pending(index, stream) == 0 || mojo_stream_call(index, stream, release, kept) != MOJO_OK)
      release(kept);
  };
  const c10::Device place(kMojo, index);
  return at::from_blob(host.data_ptr(), host.sizes(), host.strides(), deleter, host.options().device(place), place);
}

}  // namespace

void register_host() {
  register_kernel("mojo::host_alias", c10::DispatchKey::CompositeExplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(host_alias)));
  register_kernel("mojo::from_host", c10::DispatchKey::CompositeExplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(from_host)));
}

}  // namespace torch_mojo
