// The threads of an OpenMP runtime as guests of the thread pool. Between its loops they spin for milliseconds, on cores
// that workers of ours would have to share with them; a caller that only waits for us lends them instead.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>

#include "core.h"
#include "thread_pool.h"

namespace mojo {

namespace {

// GNU's interface, which LLVM's runtime has on Linux too: what the team's first thread does itself stands between start
// and end.
struct OpenMP {
  void (*parallel_start)(void (*)(void*), void*, unsigned);
  void (*parallel_end)();
  int (*max_threads)();
  int (*in_parallel)();
};

OpenMP openmp{};
std::atomic<bool> has_openmp{false};

struct Team {
  std::atomic<bool> dismissed{false};
  std::atomic<int32_t> arrived{0};
  int32_t guests = 0;
  uint32_t epoch = 0;
};

thread_local Team team;

void serve(void* given) {
  Team& joined = *static_cast<Team*>(given);
  // The team has the size that its runtime gives it always, since another one would cost it threads.
  if (joined.arrived.fetch_add(1) < joined.guests) ThreadPool::instance().serve(joined.dismissed);
}

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

}  // namespace mojo

using namespace mojo;

void mojo_use_openmp_of(const char* library_name) {
  void* library = dlopen(library_name, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr || has_openmp.load()) return;
  has_openmp.store(look_up(library, "GOMP_parallel_start", openmp.parallel_start) &&
                   look_up(library, "GOMP_parallel_end", openmp.parallel_end) &&
                   look_up(library, "omp_get_max_threads", openmp.max_threads) &&
                   look_up(library, "omp_in_parallel", openmp.in_parallel));
}

void mojo_team_begin(void) {
  if (!has_openmp.load(std::memory_order_acquire) || openmp.in_parallel()) return;
  ThreadPool& pool = ThreadPool::instance();
  const int32_t threads = openmp.max_threads();
  const int32_t guests = std::min(threads, pool.threads()) - 1;
  if (guests <= 0) return;
  team.dismissed.store(false);
  team.arrived.store(0);
  team.guests = guests;
  team.epoch = pool.epoch();
  pool.expect_guests(guests);
  openmp.parallel_start(serve, &team, static_cast<unsigned>(threads));
}

int32_t mojo_team_end(void) {
  if (team.guests == 0) return 0;
  ThreadPool& pool = ThreadPool::instance();
  const bool had_loop = pool.epoch() != team.epoch;
  pool.dismiss(team.dismissed);
  openmp.parallel_end();
  pool.expect_guests(-team.guests);
  team.guests = 0;
  return had_loop;
}
