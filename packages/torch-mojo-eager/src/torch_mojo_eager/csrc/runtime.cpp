// The classes that torch accepts only from C++: allocators, device guard, generator, hooks, profiler stubs. Each method
// forwards to the C interface of mojo-runtime.
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <mutex>
#include <random>

#include "common.h"

namespace c10 {
C10_API void register_privateuse1_backend(const std::string& backend_name);
}

namespace torch_mojo {

namespace {

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }

void check_device_index(int64_t index) {
  const int count = mojo_device_count();
  if (C10_UNLIKELY(mojo_in_bad_fork())) check_status(mojo_check_device(0));
  TORCH_CHECK(index >= 0 && index < count, "mojo: invalid device index ", index, "; there ",
              count == 1 ? "is " : "are ", count, count == 1 ? " device" : " devices",
              " (MOJO_RUNTIME_DEVICES chooses, e.g. cpu:2)");
}

// ---- memory ----

void release_device_memory(void* data) {
  if (data != nullptr) mojo_free(data);
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kMojo, current_device);
    void* data = nullptr;
    check_status(mojo_allocate(current_device, bytes, current_stream(current_device), &data));
    return {data, data, &release_device_memory, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_device_memory; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    check_status(
        mojo_copy(destination, current_device, source, current_device, bytes, current_stream(current_device), 0));
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { check_status(mojo_empty_cache(current_device)); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) check_status(mojo_record_stream(data.get(), stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device_index(device);
    MojoMemoryStatistics s;
    check_status(mojo_memory_statistics(device, &s));
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto set = [](auto& array, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
      auto& all = array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      all.current = current;
      all.peak = peak;
      all.allocated = allocated;
      all.freed = freed;
    };
    set(stats.allocated_bytes, s.allocated_current, s.allocated_peak, s.allocated_total, s.freed_total);
    set(stats.requested_bytes, s.allocated_current, s.allocated_peak, s.allocated_total, s.freed_total);
    set(stats.active_bytes, s.allocated_current, s.allocated_peak, s.allocated_total, s.freed_total);
    set(stats.reserved_bytes, s.reserved_current, s.reserved_peak, s.allocated_total, s.freed_total);
    set(stats.allocation, s.allocations_current, s.allocations_peak, s.allocations_total, s.frees_total);
    set(stats.active, s.allocations_current, s.allocations_peak, s.allocations_total, s.frees_total);
    stats.num_ooms = s.out_of_memory_count;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_device_index(device);
    check_status(mojo_reset_accumulated_statistics(device));
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    check_device_index(device);
    check_status(mojo_reset_peak_statistics(device));
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_device_index(device);
    uint64_t free_bytes = 0, total_bytes = 0;
    check_status(mojo_memory_info(device, &free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }
};

DeviceAllocator& the_device_allocator() {
  static auto* allocator = new DeviceAllocator;
  return *allocator;
}

void release_pinned_memory(void* data) {
  if (data != nullptr) mojo_pinned_free(data);
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes != 0) check_status(mojo_pinned_allocate(current_device, bytes, &data));
    return {data, data, &release_pinned_memory, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned_memory; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
  // The runtime itself defers the free of pinned memory behind the copies that use it.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator& the_pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

// ---- device guard: current device, streams, events ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kMojo; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous(kMojo, current_device);
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kMojo, current_device}; }
  void setDevice(c10::Device device) const override {
    if (!device.has_index() || device.index() == current_device) return;
    check_device_index(device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(mojo_device_count()); }

  static c10::Stream make_stream(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kMojo, static_cast<c10::DeviceIndex>(device)), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    // Not check_device_index: in a forked child autograd asks where an exception ends the process.
    TORCH_CHECK(index_of(device) < mojo_device_count(), "mojo: invalid device index ",
                static_cast<int>(index_of(device)));
    return make_stream(index_of(device), current_streams[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(index_of(device), 0); }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    check_device_index(index_of(device));
    int64_t id = 0;
    check_status(mojo_stream_create(index_of(device), priority, &id));
    return make_stream(index_of(device), id);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int device = index_of(stream.device());
    check_device_index(device);
    const auto previous = make_stream(device, current_streams[device]);
    current_streams[device] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return mojo_stream_native_handle(stream.device_index(), stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    int32_t done = 0;
    check_status(mojo_stream_query(stream.device_index(), stream.id(), &done));
    return done != 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_status(mojo_stream_synchronize(stream.device_index(), stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_device_index(device < 0 ? current_device : device);
    check_status(mojo_device_synchronize(device < 0 ? current_device : device));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    the_device_allocator().recordStream(data, stream);
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) mojo_event_destroy(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ", static_cast<int>(device),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr)
      check_status(mojo_event_create(stream.device_index(), flag != c10::EventFlag::PYTORCH_DEFAULT, event));
    check_status(mojo_event_record(*event, stream.device_index(), stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) check_status(mojo_event_wait(event, stream.device_index(), stream.id()));
  }
  bool queryEvent(void* event) const override {
    int32_t done = 1;
    if (event != nullptr) check_status(mojo_event_query(event, &done));
    return done != 0;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check_status(mojo_event_synchronize(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(start != nullptr && end != nullptr,
                      "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    check_status(mojo_event_elapsed(start, end, &milliseconds));
    return milliseconds;
  }
};

// ---- random numbers: the state of CUDA's generator ----

struct PhiloxGenerator final : c10::GeneratorImpl {
  explicit PhiloxGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kMojo, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t value) override {
    seed_value = value;
    offset_value = 0;
  }
  void set_offset(uint64_t value) override {
    TORCH_CHECK(value % 4 == 0, "offset must be a multiple of 4");
    offset_value = value;
  }
  uint64_t get_offset() const override { return offset_value; }
  uint64_t current_seed() const override { return seed_value; }
  uint64_t seed() override {
    std::random_device entropy;
    // 53 bits, so that the seed survives a float64 as on other devices
    const uint64_t value = ((static_cast<uint64_t>(entropy()) << 32) + entropy()) & 0x1FFFFFFFFFFFFF;
    set_current_seed(value);
    return value;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::ScalarType::Byte);
    const uint64_t words[2] = {seed_value, offset_value};
    std::memcpy(state.mutable_data_ptr(), words, sizeof words);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_TYPE(
        state.device().is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_contiguous(),
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.numel() == 16 || state.numel() == 8, "RNG state is wrong size");
    uint64_t words[2] = {0, 0};
    std::memcpy(words, state.data(), state.numel());
    seed_value = words[0];
    offset_value = words[1];
  }
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator(device_.index());
    copy->seed_value = seed_value;
    copy->offset_value = offset_value;
    return copy;
  }

  uint64_t seed_value = c10::default_rng_seed_val, offset_value = 0;
};

const at::Generator& default_generator_of(c10::DeviceIndex device) {
  static auto* generators = new std::array<at::Generator, kMaxDevices>;
  static auto* once = new std::array<std::once_flag, kMaxDevices>;
  if (device < 0) device = current_device;
  check_device_index(device);
  std::call_once((*once)[device], [device] { (*generators)[device] = at::make_generator<PhiloxGenerator>(device); });
  return (*generators)[device];
}

// ---- hooks ----

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return mojo_device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(mojo_device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_device_index(device);
    current_device = device;
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto previous = current_device;
    if (device >= 0) setCurrentDevice(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return mojo_is_pinned(data) != 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &the_pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const int32_t device = mojo_pointer_device(data);
    TORCH_CHECK(device != MOJO_HOST, "the pointer is not mojo device memory");
    return {kMojo, static_cast<c10::DeviceIndex>(device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator_of(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (device < 0) device = current_device;
    check_device_index(device);
    return at::make_generator<PhiloxGenerator>(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// ---- profiler: device time of an op, by events around it ----

struct ProfilerStubs final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_nanoseconds) const override {
    if (device != nullptr) *device = current_device;
    void* handle = nullptr;
    check_status(mojo_event_create(current_device, 1, &handle));
    *event = std::shared_ptr<void>(handle, [](void* e) { mojo_event_destroy(e); });
    check_status(mojo_event_record(handle, current_device, current_stream(current_device)));
    if (cpu_nanoseconds != nullptr)
      *cpu_nanoseconds =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count();
  }
  float elapsed(const Event* start, const Event* end) const override {
    check_status(mojo_event_synchronize(start->get()));
    check_status(mojo_event_synchronize(end->get()));
    double milliseconds = 0;
    check_status(mojo_event_elapsed(start->get(), end->get(), &milliseconds));
    return static_cast<float>(milliseconds * 1000);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    for (int i = 0; i < mojo_device_count(); i++) visit(i);
  }
  void synchronize() const override {
    for (int i = 0; i < mojo_device_count(); i++) check_status(mojo_device_synchronize(i));
  }
};

}  // namespace

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  CurrentDevice guard(storage.device().index());
  c10::DataPtr data = the_device_allocator().allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept != 0) the_device_allocator().copy_data(data.get(), storage.data(), kept);
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

c10::Allocator* device_allocator() { return &the_device_allocator(); }

at::Generator default_generator(int64_t device) { return default_generator_of(static_cast<c10::DeviceIndex>(device)); }

std::vector<int64_t> philox_state(const std::optional<at::Generator>& generator, int64_t device, int64_t increment) {
  const at::Generator& chosen =
      generator && generator->defined() ? *generator : default_generator_of(static_cast<c10::DeviceIndex>(device));
  TORCH_CHECK(chosen.device().type() == kMojo && (chosen.device().index() == device || device < 0), "Expected a '",
              c10::Device(kMojo, static_cast<c10::DeviceIndex>(device)), "' generator but found '", chosen.device(),
              "'");
  auto* impl = static_cast<PhiloxGenerator*>(chosen.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(impl->mutex_);
  std::vector<int64_t> state = {static_cast<int64_t>(impl->seed_value), static_cast<int64_t>(impl->offset_value)};
  impl->offset_value += (static_cast<uint64_t>(increment) + 3) / 4 * 4;
  return state;
}

void register_runtime(const char* name) {
  c10::register_privateuse1_backend(name);
  c10::SetAllocator(kMojo, &the_device_allocator());
  at::setHostAllocator(kMojo, &the_pinned_allocator());
  c10::impl::registerDeviceGuard(kMojo, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  torch::profiler::impl::registerPrivateUse1Methods(new ProfilerStubs);
  register_kernel("mojo::default_generator", c10::DispatchKey::CompositeImplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(default_generator)));
  register_kernel("mojo::philox_state", c10::DispatchKey::CompositeImplicitAutograd,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(philox_state)));
}

}  // namespace torch_mojo
