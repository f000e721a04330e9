#include "thread_pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core.h"

namespace mojo {

namespace {

// How long a worker looks for the next loop, and a caller for the last worker, before sleeping.
constexpr int kPoolSpinMicroseconds = 40;
// The same in a team, where the next loop is likely.
constexpr int kTeamSpinMicroseconds = 2000;
// A caller hands out about this many pieces per thread, so that uneven pieces balance.
constexpr int64_t kPiecesPerThread = 8;

thread_local bool inside_loop = false;

}  // namespace

int32_t available_cores() {
  int32_t cores = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {  // "max 100000" or a quota and its period
    double quota, period;
    if (std::fscanf(file, "%lf %lf", &quota, &period) == 2 && period > 0)
      cores = std::max(1, std::min(cores, static_cast<int32_t>(std::ceil(quota / period))));
    std::fclose(file);
  }
#endif
  return cores;
}

ThreadPool& ThreadPool::instance() {
  static ThreadPool* pool = new ThreadPool;  // outlives every thread: never destroyed
  return *pool;
}

void ThreadPool::run_indices() {
  while (true) {
    int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    int64_t end = std::min(begin + grain_, count_);
    for (int64_t i = begin; i < end; i++) task_(context_, i);
  }
}

void ThreadPool::parallel_for(MojoTask task, void* context, int64_t count) {
  int32_t threads = this->threads();
  if (count <= 1 || threads <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < count; i++) task(context, i);
    return;
  }
  const bool guests_suffice = guests_.load() >= threads - 1;
  if (workers_.empty() && !guests_suffice) start_workers();
  task_ = task;
  context_ = context;
  count_ = count;
  grain_ = std::max<int64_t>(1, count / (threads * kPiecesPerThread));
  next_.store(0, std::memory_order_relaxed);
  // Sequentially consistent, as are the operations on active_: a worker that entered is seen here, or sees it closed.
  open_.store(true);
  epoch_.fetch_add(1);
  const int32_t guests_asleep = sleeping_guests_.load();
  const int32_t sleeping = guests_asleep + (guests_suffice ? 0 : sleeping_.load());
  if (sleeping > 0) {
    // Only all can be woken where it matters who is.
    if (guests_asleep > 0 || count - 1 >= sleeping)
      epoch_.notify_all();
    else
      for (int64_t i = 1; i < count; i++) epoch_.notify_one();
  }
  inside_loop = true;
  run_indices();
  inside_loop = false;
  open_.store(false);
  if (!spin([this] { return active_.load() == 0; }, kPoolSpinMicroseconds)) {
    uint32_t active;
    while ((active = active_.load()) != 0) active_.wait(active);
  }
  busy_.store(false, std::memory_order_release);
}

template <typename Leave>
void ThreadPool::work(uint32_t epoch, bool is_guest, Leave leave) {
  std::atomic<int32_t>& sleeping = is_guest ? sleeping_guests_ : sleeping_;
  inside_loop = true;
  while (true) {
    auto changed = [&] { return epoch_.load() != epoch || leave(); };
    if (!spin(changed, is_guest || awake_.load() > 0 ? kTeamSpinMicroseconds : kPoolSpinMicroseconds)) {
      sleeping.fetch_add(1);
      while (!changed()) epoch_.wait(epoch);
      sleeping.fetch_sub(1);
    }
    if (leave()) break;
    epoch = epoch_.load();
    active_.fetch_add(1);
    if (open_.load()) run_indices();
    if (active_.fetch_sub(1) == 1) active_.notify_one();
  }
  inside_loop = false;
}

void ThreadPool::serve(const std::atomic<bool>& dismissed) {
  // Not the present epoch, so that a loop that is open already is joined.
  work(epoch_.load() - 1, true, [&] { return dismissed.load(); });
}

void ThreadPool::dismiss(std::atomic<bool>& dismissed) {
  dismissed.store(true);
  if (sleeping_guests_.load() == 0) return;
  epoch_.fetch_add(1);
  epoch_.notify_all();
}

void ThreadPool::start_workers() {
  uint32_t epoch = epoch_.load();
  for (int32_t i = 1; i < threads(); i++)
    workers_.emplace_back([this, epoch] { work(epoch, false, [this] { return stopping_.load(); }); });
}

void ThreadPool::stop_workers() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  stopping_.store(false);
}

bool ThreadPool::is_inside_loop() { return inside_loop; }

void ThreadPool::set_threads(int32_t threads) {
  while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  if (!workers_.empty()) stop_workers();
  threads_.store(threads);
  busy_.store(false, std::memory_order_release);
}

}  // namespace mojo

using namespace mojo;

void mojo_parallel_for(MojoTask task, void* context, int64_t count) {
  ThreadPool::instance().parallel_for(task, context, count);
}

int32_t mojo_threads(void) { return ThreadPool::instance().threads(); }

int32_t mojo_set_threads(int32_t threads) {
  if (core.forked.load()) return fail_device(0);
  if (threads < 0) return fail(MOJO_VALUE_ERROR, "the number of threads must be positive, or 0 for the default");
  if (ThreadPool::is_inside_loop())
    return fail(MOJO_RUNTIME_ERROR, "the number of threads cannot be changed from inside a parallel loop");
  ThreadPool::instance().set_threads(threads > 0 ? threads : available_cores());
  return MOJO_OK;
}
