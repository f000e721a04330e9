#include "host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace mojo {

namespace {

constexpr uint64_t kHugePage = 2 << 20;

uint64_t read_number(const char* path) {
  FILE* file = std::fopen(path, "r");
  if (file == nullptr) return UINT64_MAX;
  uint64_t value = UINT64_MAX;
  if (std::fscanf(file, "%" SCNu64, &value) != 1) value = UINT64_MAX;  // "max": no limit
  std::fclose(file);
  return value;
}

uint64_t available_bytes() {
  uint64_t result = UINT64_MAX;
  if (FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    uint64_t kilobytes;
    while (std::fgets(line, sizeof line, file) != nullptr)
      if (std::sscanf(line, "MemAvailable: %" SCNu64, &kilobytes) == 1) result = kilobytes * 1024;
    std::fclose(file);
  }
  return result;
}

}  // namespace

uint64_t round_to_pages(uint64_t bytes) {
  static const uint64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

void* map_pages(uint64_t bytes) {
  auto map = [](uint64_t size) { return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0); };
  if (bytes < 2 * kHugePage) {
    void* data = map(bytes);
    return data == MAP_FAILED ? nullptr : data;
  }
  void* data = map(bytes + kHugePage);
  if (data == MAP_FAILED) return nullptr;
  auto start = reinterpret_cast<uintptr_t>(data);
  uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(data, aligned - start);
  uintptr_t end = aligned + bytes, mapped_end = start + bytes + kHugePage;
  if (mapped_end > end) munmap(reinterpret_cast<void*>(end), mapped_end - end);
#ifdef MADV_HUGEPAGE
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
#endif
  return reinterpret_cast<void*>(aligned);
}

void unmap_pages(void* data, uint64_t bytes) { munmap(data, bytes); }

MemoryInfo host_memory_info() {
  uint64_t total = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  uint64_t free = std::min(available_bytes(), total);
  struct {
    const char *limit, *usage;
  } const groups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
  };
  for (auto& group : groups) {
    uint64_t limit = read_number(group.limit);
    if (limit >= total) continue;
    uint64_t usage = read_number(group.usage);
    total = limit;
    free = std::min(free, usage < limit ? limit - usage : 0);
  }
  return {free, total};
}

}  // namespace mojo
