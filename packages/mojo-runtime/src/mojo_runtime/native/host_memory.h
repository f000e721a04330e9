// Host memory from the operating system, its limits, and which addresses belong to whom.
#pragma once
#include <cstdint>
#include <map>
#include <shared_mutex>

namespace mojo {

// Zeroed pages, or NULL. Large ones are aligned for and advised to use huge pages.
void* map_pages(uint64_t bytes);
void unmap_pages(void* data, uint64_t bytes);
uint64_t round_to_pages(uint64_t bytes);

struct MemoryInfo {
  uint64_t free_bytes, total_bytes;
};
// Of the machine or of the control group that limits this process, swap included in neither.
MemoryInfo host_memory_info();

// Address ranges with a value each; finds the range that an address lies in.
template <typename Value>
class RangeMap {
 public:
  void insert(const void* begin, uint64_t bytes, Value value) {
    std::unique_lock lock(mutex_);
    auto address = reinterpret_cast<uintptr_t>(begin);
    ranges_[address] = Range{address + bytes, value};
  }

  void erase(const void* begin) {
    std::unique_lock lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(begin));
  }

  bool find(const void* pointer, Value* value) const {
    std::shared_lock lock(mutex_);
    auto address = reinterpret_cast<uintptr_t>(pointer);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return false;
    const Range& range = std::prev(next)->second;
    if (address >= range.end) return false;
    *value = range.value;
    return true;
  }

 private:
  struct Range {
    uintptr_t end;
    Value value;
  };
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, Range> ranges_;
};

}  // namespace mojo
