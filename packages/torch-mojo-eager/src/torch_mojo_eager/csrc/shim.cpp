// The shim as one translation unit: torch's headers are parsed once.
#include "attention.cpp"
#include "autocast.cpp"
#include "autograd.cpp"
#include "channel_norm.cpp"
#include "common.cpp"
#include "convolution.cpp"
#include "copy.cpp"
#include "creation.cpp"
#include "host.cpp"
#include "indexing.cpp"
#include "kernel_call.cpp"
#include "launch.cpp"
#include "meta.cpp"
#include "native.cpp"
#include "normalization.cpp"
#include "pointwise.cpp"
#include "random.cpp"
#include "runtime.cpp"
#include "structured.cpp"
#include "views.cpp"

// Registers the device under `name` with everything that needs no rows. The schemas of the mojo:: ops are defined
// before. `max_blocks`: for each device, how many blocks the grid of random draws has at most.
TORCH_MOJO_API int32_t torch_mojo_initialize(const char* name, const int64_t* max_blocks) {
  using namespace torch_mojo;
  return shield([&] {
    register_runtime(name);
    register_views();
    register_copies();
    register_creation();
    register_launch();
    register_host();
    register_normalization();
    register_channel_norm();
    register_convolution();
    register_indexing();
    register_attention();
    register_random(max_blocks, mojo_device_count());
    register_autocast_fallthrough();
    start_autograd_threads();
  });
}
