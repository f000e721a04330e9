#include "pinned.h"

#include <algorithm>

namespace mojo {

namespace {

constexpr uint64_t kMaximumUnusedBytes = 64 << 20;

}  // namespace

PinnedMemory& PinnedMemory::instance() {
  static auto* memory = new PinnedMemory;
  return *memory;
}

int32_t PinnedMemory::allocate(Device& device, uint64_t bytes, void** data) {
  bytes = round_to_pages(bytes);
  std::lock_guard lock(mutex_);
  collect_deferred();
  PinnedBlock* block = nullptr;
  auto found = std::find_if(unused_.begin(), unused_.end(), [&](PinnedBlock* candidate) {
    return candidate->bytes == bytes && &candidate->device == &device;
  });
  if (found != unused_.end()) {
    block = *found;
    unused_.erase(found);
    unused_bytes_ -= bytes;
  } else {
    void *memory = nullptr, *handle = nullptr;
    if (on_gpu()) {
      int32_t status = call_driver(core.driver->pinned_allocate, device.context, bytes, &handle, &memory);
      if (status != MOJO_OK) return status;
    } else {
      if (bytes <= host_memory_info().total_bytes) memory = map_pages(bytes);
      if (memory == nullptr)
        return fail(MOJO_OUT_OF_MEMORY,
                    "host out of memory: tried to allocate " + readable_bytes(bytes) + " of pinned memory");
    }
    block = new PinnedBlock{device, memory, bytes, handle, {}};
  }
  ranges_.insert(block->data, bytes, block);
  *data = block->data;
  return MOJO_OK;
}

void PinnedMemory::free(void* data) {
  PinnedBlock* block = find(data, 1);
  if (block == nullptr || block->data != data) return;
  ranges_.erase(data);
  std::lock_guard lock(mutex_);
  collect_deferred();
  Deferred deferred{block, {}};
  for (Stream* stream : block->users) {
    Marker* marker;
    stream->mark(false, &marker);
    deferred.markers.push_back(marker);
  }
  block->users.clear();
  deferred_.push_back(std::move(deferred));
  collect_deferred();
}

PinnedBlock* PinnedMemory::find(const void* data, uint64_t bytes) const {
  PinnedBlock* block;
  if (!ranges_.find(data, &block)) return nullptr;
  uint64_t offset = static_cast<const char*>(data) - static_cast<char*>(block->data);
  return bytes <= block->bytes - offset ? block : nullptr;
}

void PinnedMemory::use(PinnedBlock& block, Stream& stream) {
  std::lock_guard lock(mutex_);
  if (std::find(block.users.begin(), block.users.end(), &stream) == block.users.end()) block.users.push_back(&stream);
}

void PinnedMemory::collect_deferred() {
  std::erase_if(deferred_, [this](Deferred& deferred) {
    for (Marker* marker : deferred.markers) {
      bool done = true;
      marker->query(&done);
      if (!done) return false;
    }
    for (Marker* marker : deferred.markers) marker->release();
    cache(deferred.block);
    return true;
  });
}

void PinnedMemory::cache(PinnedBlock* block) {
  if (unused_bytes_ + block->bytes > kMaximumUnusedBytes) {
    release(block);
    return;
  }
  unused_.push_back(block);
  unused_bytes_ += block->bytes;
}

void PinnedMemory::release(PinnedBlock* block) {
  if (on_gpu())
    call_driver(core.driver->pinned_release, block->device.context, block->handle);
  else
    unmap_pages(block->data, block->bytes);
  delete block;
}

void PinnedMemory::empty_cache() {
  std::lock_guard lock(mutex_);
  collect_deferred();
  for (PinnedBlock* block : unused_) release(block);
  unused_.clear();
  unused_bytes_ = 0;
}

}  // namespace mojo

using namespace mojo;

int32_t mojo_pinned_allocate(int32_t device, uint64_t bytes, void** data) {
  *data = nullptr;
  Device* found = find_device(device);
  if (found == nullptr) return fail_device(device);
  return bytes == 0 ? MOJO_OK : PinnedMemory::instance().allocate(*found, bytes, data);
}

void mojo_pinned_free(void* data) {
  if (data != nullptr && core.usable.load() != 0) PinnedMemory::instance().free(data);
}

int32_t mojo_is_pinned(const void* data) { return PinnedMemory::instance().find(data, 1) != nullptr; }
