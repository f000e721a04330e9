// Kernels for tests of the queue, in place of compiled Mojo ones: they sleep, fail and write down what they see.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>

#include "kernel_abi.h"

#define KERNEL extern "C" __attribute__((visibility("default"))) int32_t

namespace {

void sleep_milliseconds(int64_t milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace

// Does nothing.
KERNEL nothing(MojoKernelCall*) { return MOJO_OK; }

// log (int64[n]): log[0] counts the entries; appends scalar 0 after scalar 1 milliseconds.
KERNEL append(MojoKernelCall* call) {
  sleep_milliseconds(call->scalars[1]);
  auto* log = static_cast<int64_t*>(call->tensors[0].data);
  log[++log[0]] = call->scalars[0];
  return MOJO_OK;
}

// out = in + 1 (float32), after scalar 0 milliseconds; strided.
KERNEL add_one(MojoKernelCall* call) {
  sleep_milliseconds(call->scalars[0]);
  const MojoTensor &out = call->tensors[0], &in = call->tensors[1];
  for (int64_t i = 0; i < out.numel; i++) {
    int64_t rest = i, to = 0, from = 0;
    for (int d = out.ndim - 1; d >= 0; d--) {
      to += rest % out.sizes[d] * out.strides[d];
      from += rest % out.sizes[d] * in.strides[d];
      rest /= out.sizes[d];
    }
    static_cast<float*>(out.data)[to] = static_cast<float*>(in.data)[from] + 1;
  }
  return MOJO_OK;
}

// out[0] = the element of tensor 1 (int64 words), out[1] = scalar 0, out[2] = whether tensor 2 is absent.
KERNEL describe(MojoKernelCall* call) {
  auto* out = static_cast<int64_t*>(call->tensors[0].data);
  std::memcpy(out, call->tensors[1].data, sizeof(int64_t));
  out[1] = call->scalars[0];
  out[2] = (call->tensors[2].flags & MOJO_ABSENT) != 0 && call->tensors[2].data == nullptr;
  return MOJO_OK;
}

// Fails with status scalar 0 and the message "failure <scalar 1>".
KERNEL failing(MojoKernelCall* call) {
  std::snprintf(call->error, call->error_capacity, "failure %lld", static_cast<long long>(call->scalars[1]));
  return static_cast<int32_t>(call->scalars[0]);
}

// counts (int64[n]): adds 1 to each element through the runtime's threads, with a loop inside the loop.
KERNEL count_up(MojoKernelCall* call) {
  auto outer = [](void* context, int64_t i) {
    auto* call = static_cast<MojoKernelCall*>(context);
    auto* counts = static_cast<int64_t*>(call->tensors[0].data);
    auto inner = [](void* element, int64_t) { ++*static_cast<int64_t*>(element); };
    call->parallel_for(inner, counts + i, 1);
  };
  call->parallel_for(outer, call, call->tensors[0].numel);
  return MOJO_OK;
}

// What the compiler makes of kernel_abi.h: sizes, then offsets.
KERNEL abi_layout(int64_t* values) {
  const int64_t layout[] = {
      sizeof(MojoTensor),
      sizeof(MojoKernelCall),
      offsetof(MojoTensor, numel),
      offsetof(MojoTensor, dtype),
      offsetof(MojoTensor, ndim),
      offsetof(MojoTensor, flags),
      offsetof(MojoKernelCall, device_context),
      offsetof(MojoKernelCall, threads),
      offsetof(MojoKernelCall, error_capacity),
  };
  std::memcpy(values, layout, sizeof layout);
  return sizeof layout / sizeof *layout;
}
