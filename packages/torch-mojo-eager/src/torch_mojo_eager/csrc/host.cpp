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
  TORCH_CHECK(self.device().type() == kMojo, "host_aliases: expected a mojo tensor, got one on ", self.device());
  return at::from_blob(
      self.data_ptr(), self.sizes(), self.strides(), [self](void*) {}, self.options().device(at::kCPU));
}

void release(void* host) { delete static_cast<at::Tensor*>(host); }

// A mojo tensor with the memory of a CPU tensor, which is kept until work queued on the current stream is done.
at::Tensor from_host(const at::Tensor& host, int64_t device) {
  check_is_cpu();
  TORCH_CHECK(host.device().is_cpu(), "from_hosts: expected a CPU tensor, got one on ", host.device());
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

std::vector<at::Tensor> host_aliases(at::TensorList tensors) {
  std::vector<at::Tensor> aliases;
  aliases.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) aliases.push_back(host_alias(tensor));
  return aliases;
}

std::vector<at::Tensor> from_hosts(at::TensorList hosts, int64_t device) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(hosts.size());
  for (const at::Tensor& host : hosts) tensors.push_back(from_host(host, device));
  return tensors;
}

}  // namespace

void register_host() {
  register_kernel("mojo::host_aliases", c10::DispatchKey::CompositeExplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(host_aliases)));
  register_kernel("mojo::from_hosts", c10::DispatchKey::CompositeExplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(from_hosts)));
}

}  // namespace torch_mojo
