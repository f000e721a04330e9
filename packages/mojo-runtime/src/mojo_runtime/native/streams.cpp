#include "streams.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "thread_pool.h"

namespace mojo {

namespace {

constexpr size_t kRecordBytes = 512;  // holds a launch with four tensors of five dimensions
constexpr size_t kMaximumUnusedRecords = 8192;
constexpr int kQueueSpinMicroseconds = 20;           // before a worker or a waiting host thread sleeps
constexpr std::chrono::seconds kWorkerIdleTime{10};  // then an idle worker ends; the next record starts another

struct MarkRecord : Record {
  Marker* marker;
};

struct CallRecord : Record {
  void (*function)(void*);
  void* context;
};

int32_t run_reach(Record* record, Stream& stream) {
  Marker* marker = static_cast<MarkRecord*>(record)->marker;
  int32_t status = marker->reach(stream);
  marker->release();
  return status;
}

int32_t run_hold(Record* record, Stream& stream) {
  Marker* marker = static_cast<MarkRecord*>(record)->marker;
  int32_t status = marker->hold(stream);
  marker->release();
  return status;
}

int32_t run_call(Record* record, Stream& stream) {
  auto* call = static_cast<CallRecord*>(record);
  int32_t status = on_gpu() ? call_driver(core.driver->stream_synchronize, stream.context) : MOJO_OK;
  call->function(call->context);
  return status;
}

void push_marker(Stream& stream, Marker* marker, int32_t (*run)(Record*, Stream&)) {
  marker->retain();
  stream.push(sizeof(MarkRecord), [&](Record* record) {
    record->run = run;
    static_cast<MarkRecord*>(record)->marker = marker;
  });
}

}  // namespace

// ---- Marker

void Marker::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (driver_event_ != nullptr) call_driver(core.driver->event_destroy, driver_event_);
  delete this;
}

int32_t Marker::reach(Stream& stream) {
  int32_t status = MOJO_OK;
  if (on_gpu()) {
    status = call_driver(core.driver->event_create, device_.context, int32_t{timing_}, &driver_event_);
    if (status == MOJO_OK) status = call_driver(core.driver->event_record, driver_event_, stream.context);
  } else {
    nanoseconds_ = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  phase_.store(1, std::memory_order_release);
  phase_.notify_all();
  return status;
}

void Marker::wait_reached() {
  if (spin([this] { return reached(); }, kQueueSpinMicroseconds)) return;
  HostWait waiting;
  phase_.wait(0, std::memory_order_acquire);
}

int32_t Marker::hold(Stream& stream) {
  wait_reached();
  return driver_event_ == nullptr ? MOJO_OK : call_driver(core.driver->event_wait, driver_event_, stream.context);
}

int32_t Marker::query(bool* done) {
  int32_t value = reached();
  int32_t status = MOJO_OK;
  if (value && driver_event_ != nullptr) status = call_driver(core.driver->event_query, driver_event_, &value);
  *done = value != 0;
  return status;
}

int32_t Marker::synchronize() {
  wait_reached();
  return driver_event_ == nullptr ? MOJO_OK : call_driver(core.driver->event_synchronize, driver_event_);
}

int32_t Marker::elapsed(Marker& end, double* milliseconds) {
  if (!timing_ || !end.timing_) return fail(MOJO_VALUE_ERROR, "both events must be created with enable_timing=True");
  bool first = false, second = false;
  int32_t status = query(&first);
  if (status == MOJO_OK) status = end.query(&second);
  if (status != MOJO_OK) return status;
  if (!first || !second) return fail(MOJO_RUNTIME_ERROR, "both events must be completed before elapsed_time is read");
  if (driver_event_ != nullptr && end.driver_event_ != nullptr)
    return call_driver(core.driver->event_elapsed, driver_event_, end.driver_event_, milliseconds);
  *milliseconds = static_cast<double>(end.nanoseconds_ - nanoseconds_) / 1e6;
  return MOJO_OK;
}

// ---- Stream

Record* Stream::take_record(size_t bytes) {
  if (bytes <= kRecordBytes) {
    if (unused_ == nullptr) {
      returned_count_.store(0, std::memory_order_relaxed);
      unused_ = returned_.exchange(nullptr, std::memory_order_acquire);
    }
    if (unused_ != nullptr) {
      Record* record = unused_;
      unused_ = record->next;
      return record;
    }
  }
  size_t capacity = std::max(bytes, kRecordBytes);
  auto* record = static_cast<Record*>(std::malloc(capacity));
  if (record == nullptr) std::abort();
  record->capacity = capacity;
  return record;
}

void Stream::give_back(Record* record) {
  if (record->capacity != kRecordBytes ||
      returned_count_.fetch_add(1, std::memory_order_relaxed) >= kMaximumUnusedRecords) {
    std::free(record);
    return;
  }
  record->next = returned_.load(std::memory_order_relaxed);
  while (!returned_.compare_exchange_weak(record->next, record, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void Stream::append(Record* record) {
  // Before the record can be seen, so that the worker never finishes more than was queued.
  queued_.store(queued_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  record->next = newest_.load(std::memory_order_relaxed);
  while (!newest_.compare_exchange_weak(record->next, record, std::memory_order_release, std::memory_order_relaxed)) {
  }
  if (!has_worker_) {
    has_worker_ = true;
    std::thread([this] { work(); }).detach();
  } else if (worker_sleeps_) {
    worker_sleeps_ = false;  // waking takes a system call, and one is enough until it runs
    work_.notify_one();
  }
}

Record* Stream::next_records() {
  auto found = [this] { return newest_.load(std::memory_order_acquire) != nullptr; };
  if (!spin(found, kQueueSpinMicroseconds)) {
    std::unique_lock lock(mutex_);
    worker_sleeps_ = true;
    bool woken = work_.wait_for(lock, kWorkerIdleTime, found);
    worker_sleeps_ = false;
    if (!woken) {
      has_worker_ = false;
      return nullptr;
    }
  }
  Record *oldest = nullptr, *newest = newest_.exchange(nullptr, std::memory_order_acquire);
  while (newest != nullptr) {
    Record* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  return oldest;
}

void Stream::work() {
  while (Record* record = next_records()) {
    while (record != nullptr) {
      int32_t status = record->run(record, *this);
      if (on_gpu()) enqueued();
      if (status != MOJO_OK) remember_failure(status, mojo_last_error());
      Record* next = record->next;
      give_back(record);
      record = next;
      finished_.store(finished_.load(std::memory_order_relaxed) + 1);  // sequentially consistent with waiting_
      if (waiting_.load() > 0) {
        std::lock_guard guard(mutex_);
        progress_.notify_all();
      }
    }
  }
}

void Stream::drain() {
  if (pending() == 0) return;
  int64_t target = queued();
  auto done = [&] { return finished_.load() >= target; };
  if (spin(done, kQueueSpinMicroseconds)) return;
  HostWait waiting;
  waiting_.fetch_add(1);
  {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, done);
  }
  waiting_.fetch_sub(1);
}

int32_t Stream::take_failure() {
  if (!failed_.load(std::memory_order_acquire)) return MOJO_OK;
  std::lock_guard lock(mutex_);
  int32_t status = failure_status_;
  if (status != MOJO_OK) fail(status, std::move(failure_message_));
  failure_status_ = MOJO_OK;
  failed_.store(false, std::memory_order_release);
  return status;
}

int32_t Stream::synchronize() {
  drain();
  int32_t status = MOJO_OK;
  if (on_gpu()) {
    idle_.store(true);
    status = call_driver(core.driver->stream_synchronize, context);
  }
  int32_t failure = take_failure();  // the earlier one, and its message is the last stored
  return failure != MOJO_OK ? failure : status;
}

int32_t Stream::query(bool* done) {
  *done = pending() == 0;
  if (!on_gpu() || !*done) return MOJO_OK;
  // The driver answers for events only, and a fresh one takes a while on an idle stream too.
  std::lock_guard lock(query_mutex_);
  int32_t status = MOJO_OK;
  if (!idle_.exchange(true)) {
    if (last_ != nullptr) last_->release();
    status = mark(false, &last_);
  }
  if (last_ == nullptr) return status;
  if (status == MOJO_OK) status = last_->query(done);
  if (status == MOJO_OK && !*done) return MOJO_OK;
  last_->release();
  last_ = nullptr;
  return status;
}

void Stream::remember_failure(int32_t status, std::string message) {
  std::lock_guard lock(mutex_);
  if (failure_status_ != MOJO_OK) return;
  failure_status_ = status;
  failure_message_ = std::move(message);
  failed_.store(true, std::memory_order_release);
}

int32_t Stream::mark(bool timing, Marker** marker) {
  *marker = new Marker(device, timing);
  if (pending() == 0) return (*marker)->reach(*this);
  push_marker(*this, *marker, run_reach);
  return MOJO_OK;
}

namespace {

struct Event {
  Device& device;
  const bool timing;
  std::mutex mutex;
  Marker* current = nullptr;  // the last record; a stream that waits for an earlier one holds that marker itself

  Marker* retained() {
    std::lock_guard lock(mutex);
    if (current != nullptr) current->retain();
    return current;
  }
};

// Calls `use(marker)` with the event's last record; returns `never_recorded` if there is none.
template <typename Use>
int32_t with_marker(void* event, int32_t never_recorded, Use use) {
  if (core.usable.load(std::memory_order_acquire) == 0) return fail_device(0);
  Marker* marker = static_cast<Event*>(event)->retained();
  if (marker == nullptr) return never_recorded;
  int32_t status = use(*marker);
  marker->release();
  return status;
}

std::mutex stream_creation;

}  // namespace

}  // namespace mojo

using namespace mojo;

int32_t mojo_stream_create(int32_t device, int32_t priority, int64_t* stream) {
  Device* found = find_device(device);
  if (found == nullptr) return fail_device(device);
  std::lock_guard lock(stream_creation);
  int64_t id = found->stream_count.load();
  if (id >= kMaximumStreams)
    return fail(MOJO_RUNTIME_ERROR, "too many streams of " + found->name() + ": create streams once and reuse them");
  void* context = nullptr;
  if (on_gpu()) {
    int32_t status = call_driver(core.driver->stream_create, found->context, priority, &context);
    if (status == MOJO_NOT_IMPLEMENTED) {  // Metal has one queue
      *stream = 0;
      return MOJO_OK;
    }
    // Memory that the default stream has yet to allocate may be used on the new one.
    if (status == MOJO_OK) status = call_driver(core.driver->stream_synchronize, found->context);
    if (status != MOJO_OK) return status;
  }
  found->streams[id].store(new Stream(*found, id, context), std::memory_order_release);
  found->stream_count.store(id + 1);
  *stream = id;
  return MOJO_OK;
}

int32_t mojo_stream_query(int32_t device, int64_t stream, int32_t* done) {
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  bool value = false;
  status = found->query(&value);
  *done = value;
  return status;
}

int32_t mojo_stream_synchronize(int32_t device, int64_t stream) {
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  return found == nullptr ? status : found->synchronize();
}

int32_t mojo_device_synchronize(int32_t device) {
  Device* found = find_device(device);
  if (found == nullptr) return fail_device(device);
  int32_t first = MOJO_OK;
  std::string message;
  for (int64_t id = 0, count = found->stream_count.load(); id < count; id++) {
    int32_t status = find_stream(*found, id)->synchronize();
    if (status != MOJO_OK && first == MOJO_OK) {
      first = status;
      message = mojo_last_error();
    }
  }
  return first == MOJO_OK ? MOJO_OK : fail(first, message);
}

void* mojo_stream_native_handle(int32_t device, int64_t stream) {
  int32_t status;
  Stream* found = checked_stream(device, stream, &status);
  void* native = nullptr;
  if (found != nullptr && on_gpu()) call_driver(core.driver->stream_native, found->context, &native);
  return native;
}

int64_t mojo_stream_pending(int32_t device, int64_t stream) {
  int32_t status;
  Stream* found = checked_stream(device, stream, &status);
  return found == nullptr ? 0 : found->pending();
}

int32_t mojo_stream_call(int32_t device, int64_t stream, void (*function)(void*), void* context) {
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  found->push(sizeof(CallRecord), [&](Record* record) {
    record->run = run_call;
    static_cast<CallRecord*>(record)->function = function;
    static_cast<CallRecord*>(record)->context = context;
  });
  return MOJO_OK;
}

int32_t mojo_event_create(int32_t device, int32_t timing, void** event) {
  Device* found = find_device(device);
  if (found == nullptr) return fail_device(device);
  *event = new Event{*found, timing != 0, {}, nullptr};
  return MOJO_OK;
}

void mojo_event_destroy(void* event) {
  if (event == nullptr || core.forked.load()) return;
  auto* destroyed = static_cast<Event*>(event);
  if (destroyed->current != nullptr) destroyed->current->release();
  delete destroyed;
}

int32_t mojo_event_record(void* event, int32_t device, int64_t stream) {
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  auto* recorded = static_cast<Event*>(event);
  if (recorded->device.index != device)
    return fail(MOJO_VALUE_ERROR, "an event of " + recorded->device.name() + " cannot be recorded on a stream of " +
                                      found->device.name());
  Marker* marker;
  status = found->mark(recorded->timing, &marker);
  Marker* previous;
  {
    std::lock_guard lock(recorded->mutex);
    previous = recorded->current;
    recorded->current = marker;
  }
  if (previous != nullptr) previous->release();
  return status;
}

int32_t mojo_event_wait(void* event, int32_t device, int64_t stream) {
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  return with_marker(event, MOJO_OK, [&](Marker& marker) -> int32_t {
    if (marker.reached()) {
      if (!on_gpu()) return MOJO_OK;
      if (found->pending() == 0) {
        int32_t held = marker.hold(*found);
        found->enqueued();
        return held;
      }
    }
    push_marker(*found, &marker, run_hold);
    return MOJO_OK;
  });
}

int32_t mojo_event_query(void* event, int32_t* done) {
  *done = 1;
  return with_marker(event, MOJO_OK, [&](Marker& marker) {
    bool value = false;
    int32_t status = marker.query(&value);
    *done = value;
    return status;
  });
}

int32_t mojo_event_synchronize(void* event) {
  return with_marker(event, MOJO_OK, [](Marker& marker) { return marker.synchronize(); });
}

int32_t mojo_event_elapsed(void* start, void* end, double* milliseconds) {
  auto never_recorded = [] {
    return fail(MOJO_VALUE_ERROR, "both events must be recorded before elapsed_time is read");
  };
  auto no_timing = [] { return fail(MOJO_VALUE_ERROR, "both events must be created with enable_timing=True"); };
  if (!static_cast<Event*>(start)->timing || !static_cast<Event*>(end)->timing) return no_timing();
  bool both = false;
  int32_t status = with_marker(start, MOJO_OK, [&](Marker& first) {
    return with_marker(end, MOJO_OK, [&](Marker& last) {
      both = true;
      return first.elapsed(last, milliseconds);
    });
  });
  return status == MOJO_OK && !both ? never_recorded() : status;
}
