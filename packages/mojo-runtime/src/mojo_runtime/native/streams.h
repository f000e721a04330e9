// Streams: a queue of records and a thread that runs them in order.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core.h"
#include "thread_pool.h"

namespace mojo {

// What waits in a queue. `run` executes the record on the stream's worker and releases what it holds; it returns a
// status whose message is this thread's last error.
struct Record {
  Record* next;
  int32_t (*run)(Record*, Stream&);
  size_t capacity;
};

// One point in a stream's work, made by recording an event. Reference-counted: by the event, the queue and who waits.
class Marker {
 public:
  explicit Marker(Device& device, bool timing) : device_(device), timing_(timing) {}

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();

  // The stream has come here: on CPU devices the work before is done, on GPUs it is enqueued before a driver event.
  int32_t reach(Stream& stream);
  // Called in a stream's order: waits until the marker is reached, and makes GPU work from here on wait for it.
  int32_t hold(Stream& stream);
  bool reached() const { return phase_.load(std::memory_order_acquire) != 0; }
  int32_t query(bool* done);
  int32_t synchronize();
  int32_t elapsed(Marker& end, double* milliseconds);

 private:
  ~Marker() = default;
  void wait_reached();

  Device& device_;
  const bool timing_;
  std::atomic<int32_t> references_{1};
  std::atomic<uint32_t> phase_{0};  // 1: reached
  int64_t nanoseconds_ = 0;
  void* driver_event_ = nullptr;
};

class Stream {
 public:
  Stream(Device& device, int64_t id, void* context)
      : device(device), id(id), context(context), runs_inline(context != nullptr || id == 0) {}

  Device& device;
  const int64_t id;
  void* const context;     // the driver's stream; NULL on CPU devices
  const bool runs_inline;  // work may start on the caller's thread: the CPU's default stream; GPU streams are queues

  // Records queued or running. In this order, since queued_ is never behind finished_.
  int64_t pending() const {
    int64_t finished = finished_.load(std::memory_order_acquire);
    return queued_.load(std::memory_order_acquire) - finished;
  }
  // Whether work may start on the caller's thread now.
  bool ready_inline() const { return runs_inline && pending() == 0; }

  // Makes a record of at least `bytes` with `fill(record)` and queues it.
  template <typename Fill>
  void push(size_t bytes, Fill fill) {
    std::lock_guard lock(mutex_);
    Record* record = take_record(bytes);
    fill(record);
    append(record);
  }

  // Waits for what has been queued so far. Does not raise failures.
  void drain();
  // Waits for the work so far, also on the GPU; returns and clears what failed in it.
  int32_t synchronize();
  int32_t query(bool* done);
  // Work was enqueued on the GPU; called afterwards.
  void enqueued() { idle_.store(false, std::memory_order_release); }
  void remember_failure(int32_t status, std::string message);

  // Stores a marker behind the work so far; the caller owns a reference.
  int32_t mark(bool timing, Marker** marker);

  // Positions in the queue: what was pushed by now is done once finished() has come to queued().
  int64_t queued() const { return queued_.load(std::memory_order_acquire); }
  int64_t finished() const { return finished_.load(std::memory_order_acquire); }

 private:
  Record* take_record(size_t bytes);
  void give_back(Record* record);
  void append(Record* record);
  Record* next_records();
  void work();
  int32_t take_failure();

  // Who queues holds the mutex; the worker takes it only to sleep, and gets the records by exchanging the list.
  alignas(64) std::mutex mutex_;
  std::atomic<int64_t> queued_{0};
  Record* unused_ = nullptr;  // records to use again
  bool has_worker_ = false;
  bool worker_sleeps_ = false;
  int32_t failure_status_ = MOJO_OK;  // the first failure since the last synchronization
  std::string failure_message_;
  std::condition_variable work_;
  std::condition_variable progress_;
  // Written by both sides.
  alignas(64) std::atomic<Record*> newest_{nullptr};    // records to run, the last one first
  alignas(64) std::atomic<Record*> returned_{nullptr};  // records that have run
  std::atomic<size_t> returned_count_{0};
  // Written by the worker.
  alignas(64) std::atomic<int64_t> finished_{0};
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<int32_t> waiting_{0};  // threads in drain()
  // GPUs, for query(): nothing was enqueued since the last marker or synchronization; that marker, if it is not done.
  std::atomic<bool> idle_{true};
  std::mutex query_mutex_;
  Marker* last_ = nullptr;
};

}  // namespace mojo
