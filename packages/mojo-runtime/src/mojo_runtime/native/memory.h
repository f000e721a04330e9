// The caching allocator of a device.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core.h"
#include "host_memory.h"
#include "streams.h"

namespace mojo {

// Describes one block of device memory. On CPU devices it stands directly in front of the data.
struct Block {
  Allocator* allocator;
  void* data;
  uint64_t bytes;  // as asked for
  int32_t size_class;
  int32_t stream;  // of the allocation; orders the reuse
  uint32_t state;
  uint32_t padding;
  // While allocated: the streams of mojo_record_stream, or NULL. While cached: the next block.
  union {
    std::vector<Stream*>* users;
    Block* next;
  };
  int64_t freed_at;  // cached: which work may still use the memory, see Allocator::passed
  void* origin;      // what the system or the driver gave for a large block; NULL for a piece of a slab
};
static_assert(sizeof(Block) == 64);

// Freed blocks go to lists per stream and size class. Memory freed on a stream can be handed out again for that stream
// at once, since whatever uses it next is queued behind; other streams get it when the first has passed the free. Small
// blocks are pieces of slabs, large ones are mapped each. How much large memory is kept unused is bounded by the recent
// peak.
class Allocator {
 public:
  explicit Allocator(Device& device) : device_(device) {}

  int32_t allocate(uint64_t bytes, Stream& stream, void** data);
  static Block* find(void* data);  // the block that starts there; NULL (GPUs only) if there is none
  void free(Block* block);
  int32_t record_stream(Block* block, Stream& stream);
  int32_t empty_cache();
  MojoMemoryStatistics statistics();
  void reset_peaks();
  void reset_accumulated();

 private:
  static constexpr int32_t kClasses = 320;
  struct Pool {
    Block* blocks[kClasses] = {};
  };
  struct Slab {
    void* origin;
    int64_t pieces;
  };
  struct Deferred {
    Block* block;
    std::vector<Marker*> markers;
  };

  Block* take_cached(int32_t size_class, int32_t stream);
  Block* take_from_others(int32_t size_class);
  Block* make(int32_t size_class);
  Block* carve(uint64_t size, int32_t size_class);
  Block* map(uint64_t size, int32_t size_class);
  Block* describe(void* data);
  // Notes how far the block's stream is at the free.
  void stamp(Block* block);
  void cache(Block* block);
  void collect_deferred();
  // Whether the work that was queued when a cached block was freed is done, so that anyone may have it.
  bool passed(const Block& block) const;
  void trim(uint64_t allowed);
  void forget(Block* block);
  void release_large(Block* block);
  void release_slabs();
  int32_t out_of_memory(uint64_t bytes);
  void* system_allocate(uint64_t bytes, void** origin);
  void system_release(void* data, void* origin, uint64_t bytes);

  Device& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pool>> pools_;  // by stream
  std::vector<Deferred> deferred_;            // freed, but still used by recorded streams
  std::map<char*, Slab> slabs_;               // by address
  Slab* slab_ = nullptr;                      // the one that pieces are cut from
  char *slab_cursor_ = nullptr, *slab_end_ = nullptr;
  uint64_t large_used_ = 0, large_cached_ = 0, large_peak_ = 0;  // bytes of large blocks; the peak decays
  int64_t frees_ = 0, frees_synchronized_ = 0;  // GPUs: all frees, and those before the last synchronization
  MojoMemoryStatistics statistics_{};
};

}  // namespace mojo
