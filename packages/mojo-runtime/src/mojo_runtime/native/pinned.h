// Pinned host memory.
#pragma once
#include <mutex>
#include <vector>

#include "core.h"
#include "host_memory.h"
#include "streams.h"

namespace mojo {

struct PinnedBlock {
  Device& device;
  void* data;
  uint64_t bytes;  // rounded to pages
  void* handle;    // the driver's; NULL on CPU devices
  std::vector<Stream*> users;
};

// Page-aligned host memory that queued copies may read and write. A block that is freed while copies use it is kept
// until they are done.
class PinnedMemory {
 public:
  static PinnedMemory& instance();

  int32_t allocate(Device& device, uint64_t bytes, void** data);
  void free(void* data);
  // The block that holds all of [data, data + bytes), or NULL.
  PinnedBlock* find(const void* data, uint64_t bytes) const;
  // A copy that is about to be queued on `stream` uses the block.
  void use(PinnedBlock& block, Stream& stream);
  void empty_cache();

 private:
  struct Deferred {
    PinnedBlock* block;
    std::vector<Marker*> markers;
  };

  void collect_deferred();
  void cache(PinnedBlock* block);
  void release(PinnedBlock* block);

  std::mutex mutex_;
  RangeMap<PinnedBlock*> ranges_;  // allocated blocks
  std::vector<PinnedBlock*> unused_;
  uint64_t unused_bytes_ = 0;
  std::vector<Deferred> deferred_;
};

}  // namespace mojo
