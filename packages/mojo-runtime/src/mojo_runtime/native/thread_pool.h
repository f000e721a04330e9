// The threads that kernels run loops on.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernel_abi.h"

namespace mojo {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls `ready` until it returns true or about `microseconds` have passed; returns whether it did.
template <typename Ready>
bool spin(Ready ready, int microseconds) {
  using clock = std::chrono::steady_clock;
  if (ready()) return true;
  auto end = clock::now() + std::chrono::microseconds(microseconds);
  do {
    for (int i = 0; i < 32; i++) {
      if (ready()) return true;
      pause_briefly();
    }
  } while (clock::now() < end);
  return false;
}

// Cores this process may use by its affinity and its control group's quota.
int32_t available_cores();

// N - 1 persistent workers, or guests, and the caller. One loop uses the workers at a time; a loop that starts
// meanwhile (nested, or on another thread) runs on its caller alone, which cannot deadlock and oversubscribes nothing.
class ThreadPool {
 public:
  static ThreadPool& instance();

  void parallel_for(MojoTask task, void* context, int64_t count);
  static bool is_inside_loop();
  // Waits for the loop in progress; workers start at the next one.
  void set_threads(int32_t threads);
  int32_t threads() const { return threads_.load(std::memory_order_relaxed); }
  // Threads that belong to somebody else and work on loops meanwhile. `expect_guests` says that some are coming or,
  // negative, have left: loops that they suffice for wake no workers. A guest serves until it is dismissed.
  void expect_guests(int32_t count) { guests_.fetch_add(count); }
  void serve(const std::atomic<bool>& dismissed);
  void dismiss(std::atomic<bool>& dismissed);
  // Workers spin for as long as guests do while the sum of `count` is positive.
  void keep_awake(int32_t count) { awake_.fetch_add(count); }
  // Changes with each loop.
  uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }

 private:
  void start_workers();
  void stop_workers();
  template <typename Leave>
  void work(uint32_t epoch, bool is_guest, Leave leave);
  void run_indices();

  std::atomic<int32_t> threads_{1};
  std::vector<std::thread> workers_;  // owned by who holds busy_
  alignas(64) std::atomic<bool> busy_{false};
  // The loop in progress. Written by its caller while it is closed.
  MojoTask task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts loops; workers sleep on it
  std::atomic<bool> open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int32_t> sleeping_{0};
  std::atomic<int32_t> guests_{0};  // that are expected or there
  std::atomic<int32_t> sleeping_guests_{0};
  std::atomic<int32_t> awake_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> active_{0};  // workers between looking at open_ and leaving the loop
};

}  // namespace mojo
