// Teams: threads that are kept awake for a caller that waits for somebody who runs loops, one after the other. They are
// the pool's workers, or the caller's OpenMP threads as guests: those spin for milliseconds after each loop of their
// own, on cores that workers would have to share with them.
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

void mojo_team_begin(int32_t of_openmp) {
  ThreadPool& pool = ThreadPool::instance();
  team.epoch = pool.epoch();
  if (!of_openmp || !has_openmp.load(std::memory_order_acquire) || openmp.in_parallel()) return pool.keep_awake(1);
  const int32_t threads = openmp.max_threads();
  team.guests = std::min(threads, pool.threads()) - 1;
  if (team.guests == 0) return pool.keep_awake(1);
  team.dismissed.store(false);
  team.arrived.store(0);
  pool.expect_guests(team.guests);
  openmp.parallel_start(serve, &team, static_cast<unsigned>(threads));
}

int32_t mojo_team_end(void) {
  ThreadPool& pool = ThreadPool::instance();
  const bool had_loop = pool.epoch() != team.epoch;
  if (team.guests == 0) {
    pool.keep_awake(-1);
    return had_loop;
  }
  pool.dismiss(team.dismissed);
  openmp.parallel_end();
  pool.expect_guests(-team.guests);
  team.guests = 0;
  return had_loop;
}
