#include "memory.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <shared_mutex>
#include <unordered_map>

#include "pinned.h"

namespace mojo {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kSlabBytes = 1 << 20;
constexpr uint64_t kLargestPiece = 64 << 10;  // larger blocks are mapped each
constexpr uint64_t kLargestBlock = uint64_t{1} << 46;
constexpr uint64_t kAlwaysCached = 64 << 20;  // bytes of large blocks that may always stay cached
constexpr int32_t kLooserClasses = 2;         // a large block may be up to 25 % too large for what reuses it
constexpr int kPeakDecay = 12;                // each large allocation lowers the recent peak by 1/4096

constexpr uint32_t kAllocated = 0x6d6f6a6f, kCached = 0x66726565;

// Multiples of 64 bytes up to 1024, then eight sizes per doubling: at most 12.5 % are wasted.
int32_t class_of(uint64_t bytes) {
  int shift = bytes <= 512 ? 6 : std::bit_width(bytes - 1) - 4;
  return static_cast<int32_t>(8 * (shift - 6) + ((bytes - 1) >> shift) + 1);
}

uint64_t class_size(int32_t size_class) {
  if (size_class <= 16) return 64 * static_cast<uint64_t>(size_class);
  int shift = (size_class - 9) / 8 + 6;
  return static_cast<uint64_t>(size_class - 8 * (shift - 6)) << shift;
}

bool is_large(int32_t size_class) { return class_size(size_class) > kLargestPiece; }

// Everything that was got from the system or the driver, so that an address inside tells its device.
RangeMap<Device*>& ranges() {
  static auto* map = new RangeMap<Device*>;
  return *map;
}

// GPUs: the blocks by their data, since the host cannot write in front of it.
struct DeviceBlocks {
  std::shared_mutex mutex;
  std::unordered_map<void*, Block*> blocks;
};
DeviceBlocks& device_blocks() {
  static auto* blocks = new DeviceBlocks;
  return *blocks;
}

std::atomic<uint64_t> mapped_bytes{0};  // by all CPU devices

uint64_t header_bytes() { return on_gpu() ? 0 : sizeof(Block); }

}  // namespace

// ---- from and to the system

void* Allocator::system_allocate(uint64_t bytes, void** origin) {
  void* data = nullptr;
  if (on_gpu()) {
    if (call_driver(core.driver->allocate, device_.context, bytes, origin, &data) != MOJO_OK) return nullptr;
    // The driver allocates in the default stream's order, and the memory may go to another one.
    if (device_.stream_count.load() > 1) call_driver(core.driver->stream_synchronize, device_.context);
  } else {
    // The system would promise more than it has and kill the process when the memory is touched.
    static const uint64_t limit = host_memory_info().total_bytes;
    if (bytes > limit || mapped_bytes.load() > limit - bytes) return nullptr;
    data = *origin = map_pages(bytes);
    if (data == nullptr) return nullptr;
    mapped_bytes.fetch_add(bytes);
  }
  ranges().insert(data, bytes, &device_);
  return data;
}

void Allocator::system_release(void* data, void* origin, uint64_t bytes) {
  ranges().erase(data);
  if (on_gpu()) {
    call_driver(core.driver->release, device_.context, origin);
  } else {
    unmap_pages(data, bytes);
    mapped_bytes.fetch_sub(bytes);
  }
}

Block* Allocator::describe(void* data) {
  Block* block;
  if (on_gpu()) {
    block = new Block;
    std::unique_lock lock(device_blocks().mutex);
    device_blocks().blocks[data] = block;
  } else {
    block = static_cast<Block*>(data) - 1;
  }
  block->allocator = this;
  block->data = data;
  block->origin = nullptr;
  return block;
}

Block* Allocator::find(void* data) {
  if (!on_gpu()) return static_cast<Block*>(data) - 1;
  std::shared_lock lock(device_blocks().mutex);
  auto found = device_blocks().blocks.find(data);
  return found == device_blocks().blocks.end() ? nullptr : found->second;
}

Block* Allocator::carve(uint64_t size, int32_t size_class) {
  uint64_t stride = size + header_bytes();
  if (on_gpu()) stride = (stride + 255) / 256 * 256;
  if (static_cast<uint64_t>(slab_end_ - slab_cursor_) < stride) {
    void* origin;
    void* data = system_allocate(kSlabBytes, &origin);
    if (data == nullptr) return nullptr;
    slab_ = &(slabs_[static_cast<char*>(data)] = Slab{origin, 0});
    slab_cursor_ = static_cast<char*>(data);
    slab_end_ = slab_cursor_ + kSlabBytes;
  }
  Block* block = describe(slab_cursor_ + header_bytes());
  block->size_class = size_class;
  slab_cursor_ += stride;
  slab_->pieces++;
  return block;
}

Block* Allocator::make(int32_t size_class) {
  uint64_t size = class_size(size_class);
  return is_large(size_class) ? map(size, size_class) : carve(size, size_class);
}

Block* Allocator::map(uint64_t size, int32_t size_class) {
  // Old blocks of other sizes make room first, so that the cache follows what the program does now.
  uint64_t allowed = large_peak_ + kAlwaysCached;
  if (!on_gpu() && large_used_ + large_cached_ + size > allowed)
    trim(allowed > large_used_ + size ? allowed - large_used_ - size : 0);
  void* origin;
  void* data = system_allocate(round_to_pages(size + header_bytes()), &origin);
  if (data == nullptr) return nullptr;
  Block* block = describe(static_cast<char*>(data) + header_bytes());
  block->size_class = size_class;
  block->origin = origin;
  return block;
}

void Allocator::forget(Block* block) {
  if (!on_gpu()) return;
  std::unique_lock lock(device_blocks().mutex);
  device_blocks().blocks.erase(block->data);
  delete block;
}

void Allocator::release_large(Block* block) {
  void* origin = block->origin;
  void* start = static_cast<char*>(block->data) - header_bytes();
  uint64_t bytes = round_to_pages(class_size(block->size_class) + header_bytes());
  forget(block);
  system_release(start, origin, bytes);
}

// ---- the cache

bool Allocator::passed(const Block& block) const {
  // The host knows how far a CPU stream's queue is; of a GPU only that it has been synchronized.
  if (on_gpu()) return block.freed_at <= frees_synchronized_;
  return block.freed_at == 0 || find_stream(device_, block.stream)->finished() >= block.freed_at;
}

Block* Allocator::take_cached(int32_t size_class, int32_t stream) {
  if (static_cast<size_t>(stream) >= pools_.size() || pools_[stream] == nullptr) return nullptr;
  Block*& head = pools_[stream]->blocks[size_class];
  Block* block = head;
  if (block != nullptr) head = block->next;
  return block;
}

Block* Allocator::take_from_others(int32_t size_class) {
  for (auto& pool : pools_) {
    if (pool == nullptr) continue;
    Block*& head = pool->blocks[size_class];
    if (head == nullptr || !passed(*head)) continue;
    Block* block = head;
    head = block->next;
    return block;
  }
  return nullptr;
}

void Allocator::stamp(Block* block) {
  Stream& stream = *find_stream(device_, block->stream);
  if (on_gpu())
    block->freed_at = ++frees_;
  else
    block->freed_at = stream.pending() == 0 ? 0 : stream.queued();
}

void Allocator::cache(Block* block) {
  if (is_large(block->size_class)) {
    uint64_t size = class_size(block->size_class);
    large_used_ -= size;
    if (large_used_ + large_cached_ + size > large_peak_ + kAlwaysCached && passed(*block)) {
      release_large(block);
      return;
    }
    large_cached_ += size;
  }
  if (static_cast<size_t>(block->stream) >= pools_.size()) pools_.resize(block->stream + 1);
  if (pools_[block->stream] == nullptr) pools_[block->stream] = std::make_unique<Pool>();
  Block*& head = pools_[block->stream]->blocks[block->size_class];
  block->next = head;
  head = block;
}

void Allocator::trim(uint64_t allowed) {
  for (int32_t size_class = kClasses - 1; size_class > 0 && is_large(size_class); size_class--) {
    for (auto& pool : pools_) {
      Block** link = pool == nullptr ? nullptr : &pool->blocks[size_class];
      while (link != nullptr && *link != nullptr && large_cached_ > allowed) {
        Block* block = *link;
        if (passed(*block)) {
          *link = block->next;
          large_cached_ -= class_size(size_class);
          release_large(block);
        } else {
          link = &block->next;
        }
      }
    }
  }
}

void Allocator::release_slabs() {
  std::map<char*, int64_t> unused;  // cached pieces by slab
  auto slab_of = [&](const Block& block) {
    return std::prev(slabs_.upper_bound(static_cast<char*>(block.data)))->first;
  };
  auto visit = [&](auto remove) {
    for (auto& pool : pools_)
      for (int32_t size_class = 1; pool != nullptr && !is_large(size_class); size_class++)
        for (Block** link = &pool->blocks[size_class]; *link != nullptr;) {
          Block* block = *link;
          if (passed(*block) && remove(block)) {
            *link = block->next;
            forget(block);
          } else {
            link = &block->next;
          }
        }
  };
  visit([&](Block* block) { return unused[slab_of(*block)]++, false; });
  auto is_unused = [&](char* start) { return unused[start] == slabs_[start].pieces; };
  visit([&](Block* block) { return is_unused(slab_of(*block)); });
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    if (!is_unused(slab->first)) {
      slab++;
      continue;
    }
    if (slab_ == &slab->second) slab_cursor_ = slab_end_ = nullptr;
    system_release(slab->first, slab->second.origin, kSlabBytes);
    slab = slabs_.erase(slab);
  }
}

void Allocator::collect_deferred() {
  std::erase_if(deferred_, [this](Deferred& deferred) {
    for (Marker* marker : deferred.markers) {
      bool done = true;
      marker->query(&done);  // an error means that the device is lost: nothing uses the memory any more
      if (!done) return false;
    }
    for (Marker* marker : deferred.markers) marker->release();
    cache(deferred.block);
    return true;
  });
}

// ---- the interface

int32_t Allocator::allocate(uint64_t bytes, Stream& stream, void** data) {
  if (bytes > kLargestBlock) return out_of_memory(bytes);
  int32_t size_class = class_of(bytes);
  bool large = is_large(size_class);
  std::unique_lock lock(mutex_);
  Block* block = take_cached(size_class, stream.id);
  bool cached = block != nullptr;
  if (__builtin_expect(!cached, 0)) {
    if (!deferred_.empty()) collect_deferred();
    for (int32_t looser = size_class; block == nullptr && looser <= size_class + (large ? kLooserClasses : 0);
         looser++) {
      block = take_cached(looser, stream.id);
      if (block == nullptr) block = take_from_others(looser);
    }
    cached = block != nullptr;
    if (!cached) block = make(size_class);
    if (block == nullptr) {
      lock.unlock();
      int32_t status = empty_cache();
      lock.lock();
      if (status == MOJO_OK) block = make(size_class);
      if (block == nullptr) {
        lock.unlock();
        return out_of_memory(bytes);
      }
    }
  }
  block->bytes = bytes;
  block->stream = static_cast<int32_t>(stream.id);
  block->state = kAllocated;
  block->users = nullptr;
  if (large) {
    uint64_t size = class_size(block->size_class);
    if (cached) large_cached_ -= size;
    large_used_ += size;
    large_peak_ = std::max(large_used_, large_peak_ - (large_peak_ >> kPeakDecay));
  }
  MojoMemoryStatistics& all = statistics_;
  all.allocated_current += bytes;
  all.allocated_total += bytes;
  all.allocated_peak = std::max(all.allocated_peak, all.allocated_current);
  all.allocations_current++;
  all.allocations_total++;
  all.allocations_peak = std::max(all.allocations_peak, all.allocations_current);
  *data = block->data;
  return MOJO_OK;
}

void Allocator::free(Block* block) {
  if (block->state != kAllocated) {
    std::fprintf(stderr, "mojo_free: %p is not allocated memory of %s\n", block->data, device_.name().c_str());
    std::abort();
  }
  std::vector<Marker*> markers;
  if (__builtin_expect(block->users != nullptr, 0)) {
    for (Stream* stream : *block->users) {
      Marker* marker;
      stream->mark(false, &marker);
      bool done = true;
      marker->query(&done);
      if (done)
        marker->release();
      else
        markers.push_back(marker);
    }
    delete block->users;
  }
  std::lock_guard lock(mutex_);
  block->state = kCached;
  stamp(block);
  statistics_.allocated_current -= block->bytes;
  statistics_.freed_total += block->bytes;
  statistics_.allocations_current--;
  statistics_.frees_total++;
  if (!deferred_.empty()) collect_deferred();
  if (markers.empty())
    cache(block);
  else
    deferred_.push_back(Deferred{block, std::move(markers)});
}

int32_t Allocator::record_stream(Block* block, Stream& stream) {
  if (block->stream == stream.id) return MOJO_OK;
  std::lock_guard lock(mutex_);
  if (block->users == nullptr) block->users = new std::vector<Stream*>;
  if (std::find(block->users->begin(), block->users->end(), &stream) == block->users->end())
    block->users->push_back(&stream);
  return MOJO_OK;
}

int32_t Allocator::empty_cache() {
  int64_t frees;
  {
    std::lock_guard lock(mutex_);
    frees = frees_;
  }
  // Without the lock, since queued work may allocate. What failed in a queue stays to be raised by its stream.
  for (int64_t id = 0, count = device_.stream_count.load(); id < count; id++) {
    Stream& stream = *find_stream(device_, id);
    stream.drain();
    if (!on_gpu()) continue;
    int32_t status = call_driver(core.driver->stream_synchronize, stream.context);
    if (status != MOJO_OK) return status;
  }
  std::lock_guard lock(mutex_);
  frees_synchronized_ = std::max(frees_synchronized_, frees);
  collect_deferred();
  trim(0);
  release_slabs();
  return MOJO_OK;
}

int32_t Allocator::out_of_memory(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    statistics_.out_of_memory_count++;
  }
  MojoMemoryStatistics now = statistics();
  uint64_t free = 0, total = 0;
  mojo_memory_info(device_.index, &free, &total);
  return fail(MOJO_OUT_OF_MEMORY, device_.name() + " out of memory: tried to allocate " + readable_bytes(bytes) + "; " +
                                      readable_bytes(now.allocated_current) + " are allocated, " +
                                      readable_bytes(free) + " of " + readable_bytes(total) + " are free");
}

MojoMemoryStatistics Allocator::statistics() {
  std::lock_guard lock(mutex_);
  MojoMemoryStatistics result = statistics_;
  // As documented: what is kept for reuse is not reported.
  result.reserved_current = result.allocated_current;
  result.reserved_peak = result.allocated_peak;
  return result;
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  statistics_.allocated_peak = statistics_.allocated_current;
  statistics_.allocations_peak = statistics_.allocations_current;
}

void Allocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  statistics_.allocated_total = statistics_.freed_total = 0;
  statistics_.allocations_total = statistics_.frees_total = 0;
  statistics_.out_of_memory_count = 0;
}

}  // namespace mojo

using namespace mojo;

int32_t mojo_allocate(int32_t device, uint64_t bytes, int64_t stream, void** data) {
  *data = nullptr;
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  return bytes == 0 ? MOJO_OK : found->device.allocator->allocate(bytes, *found, data);
}

void mojo_free(void* data) {
  if (data == nullptr || core.usable.load(std::memory_order_relaxed) == 0) return;
  Block* block = Allocator::find(data);
  if (block != nullptr) block->allocator->free(block);
}

int32_t mojo_record_stream(void* data, int64_t stream) {
  if (core.usable.load() == 0) return fail_device(0);
  if (data == nullptr) return MOJO_OK;
  int32_t device = mojo_pointer_device(data);
  if (device == MOJO_HOST) return fail(MOJO_VALUE_ERROR, "record_stream: the memory is not a mojo device's");
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(device, stream, &status);
  if (found == nullptr) return status;
  Block* block = Allocator::find(data);
  if (block == nullptr || block->data != data)
    return fail(MOJO_VALUE_ERROR, "record_stream: not the start of an allocation");
  return block->allocator->record_stream(block, *found);
}

int32_t mojo_pointer_device(const void* data) {
  Device* device;
  return ranges().find(data, &device) ? device->index : MOJO_HOST;
}

namespace {

Allocator* checked_allocator(int32_t device, int32_t* status) {
  Device* found = find_device(device);
  if (found != nullptr) return found->allocator;
  *status = fail_device(device);
  return nullptr;
}

}  // namespace

int32_t mojo_memory_statistics(int32_t device, MojoMemoryStatistics* out) {
  int32_t status = MOJO_OK;
  if (Allocator* allocator = checked_allocator(device, &status)) *out = allocator->statistics();
  return status;
}

int32_t mojo_reset_peak_statistics(int32_t device) {
  int32_t status = MOJO_OK;
  if (Allocator* allocator = checked_allocator(device, &status)) allocator->reset_peaks();
  return status;
}

int32_t mojo_reset_accumulated_statistics(int32_t device) {
  int32_t status = MOJO_OK;
  if (Allocator* allocator = checked_allocator(device, &status)) allocator->reset_accumulated();
  return status;
}

int32_t mojo_empty_cache(int32_t device) {
  int32_t status = MOJO_OK;
  Allocator* allocator = checked_allocator(device, &status);
  if (allocator == nullptr) return status;
  status = allocator->empty_cache();
  PinnedMemory::instance().empty_cache();
  return status;
}

int32_t mojo_memory_info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  Device* found = find_device(device);
  if (found == nullptr) return fail_device(device);
  if (on_gpu()) return call_driver(core.driver->memory_info, found->context, free_bytes, total_bytes);
  MemoryInfo info = host_memory_info();
  *free_bytes = info.free_bytes;
  *total_bytes = info.total_bytes;
  return MOJO_OK;
}
