// Threads of autograd's engine for devices that are registered after the process's first backward.
#include <torch/csrc/autograd/engine.h>

#include "common.h"

namespace torch_mojo {
namespace {

// The engine starts a thread per device in the first backward and asserts later on that every device has one; it offers
// no way to add some. Its protected members do.
struct EngineMembers : torch::autograd::Engine {
  static constexpr auto queues = &EngineMembers::device_ready_queues_;
  static constexpr auto pool = &EngineMembers::thread_pool_shared_;
  static constexpr auto start = &EngineMembers::start_device_threads;
};

}  // namespace

void start_autograd_threads() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  const auto pool = engine.*EngineMembers::pool;  // of nested backwards
  const size_t threads = (engine.*EngineMembers::queues).size();
  const auto count = static_cast<size_t>(mojo_device_count());
  if (pool == nullptr || threads >= count) return;
  TORCH_CHECK(threads == 0, "autograd has started its threads, ", threads, ", in this process's first backward, and ",
              count, " mojo devices need more: call register_mojo_devices() before it");
  (engine.*EngineMembers::start)();
  engine.*EngineMembers::pool = pool;
}

}  // namespace torch_mojo
