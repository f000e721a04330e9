// Copies between host memory and devices.
#include <algorithm>
#include <cstring>

#include "pinned.h"
#include "streams.h"

namespace mojo {

namespace {

constexpr uint64_t kParallelCopyBytes = 4 << 20;  // smaller copies are bound by one core
constexpr uint64_t kCopyPieceBytes = 1 << 20;

enum CopyKind : int32_t { kHostToDevice = 0, kDeviceToHost = 1, kDeviceToDevice = 2 };

struct Copy {
  void* destination;
  const void* source;
  uint64_t bytes;
  CopyKind kind;
};

void copy_on_host(const Copy& copy) {
  if (copy.bytes < kParallelCopyBytes) {
    std::memmove(copy.destination, copy.source, copy.bytes);
    return;
  }
  auto piece = [](void* context, int64_t i) {
    auto& whole = *static_cast<const Copy*>(context);
    uint64_t begin = i * kCopyPieceBytes;
    std::memcpy(static_cast<char*>(whole.destination) + begin, static_cast<const char*>(whole.source) + begin,
                std::min(kCopyPieceBytes, whole.bytes - begin));
  };
  auto* destination = static_cast<char*>(copy.destination);
  auto* source = static_cast<const char*>(copy.source);
  if (destination < source + copy.bytes && source < destination + copy.bytes)
    std::memmove(copy.destination, copy.source, copy.bytes);
  else
    mojo_parallel_for(piece, const_cast<Copy*>(&copy), (copy.bytes + kCopyPieceBytes - 1) / kCopyPieceBytes);
}

// In the stream's order, on its worker or, when it is idle, on the caller's thread.
int32_t run_copy(const Copy& copy, Stream& stream) {
  if (on_gpu()) {
    int32_t status =
        call_driver(core.driver->copy, stream.context, copy.destination, copy.source, copy.bytes, int32_t{copy.kind});
    stream.enqueued();
    return status;
  }
  copy_on_host(copy);
  return MOJO_OK;
}

struct CopyRecord : Record {
  Copy copy;
  void* staging;  // pinned memory to free afterwards, or NULL
};

int32_t run_copy_record(Record* record, Stream& stream) {
  auto* queued = static_cast<CopyRecord*>(record);
  int32_t status = run_copy(queued->copy, stream);
  if (queued->staging != nullptr) PinnedMemory::instance().free(queued->staging);
  return status;
}

void push_copy(Stream& stream, const Copy& copy, void* staging) {
  stream.push(sizeof(CopyRecord), [&](Record* record) {
    record->run = run_copy_record;
    static_cast<CopyRecord*>(record)->copy = copy;
    static_cast<CopyRecord*>(record)->staging = staging;
  });
}

}  // namespace

}  // namespace mojo

using namespace mojo;

int32_t mojo_copy(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                  uint64_t bytes, int64_t stream, int32_t blocking) {
  if (destination_device == MOJO_HOST && source_device == MOJO_HOST) {
    copy_on_host(Copy{destination, source, bytes, kHostToDevice});
    return MOJO_OK;
  }
  int32_t status = MOJO_OK;
  Stream* found = checked_stream(destination_device == MOJO_HOST ? source_device : destination_device, stream, &status);
  if (found == nullptr) return status;
  if (source_device != MOJO_HOST && find_device(source_device) == nullptr) return fail_device(source_device);
  CopyKind kind = source_device == MOJO_HOST        ? kHostToDevice
                  : destination_device == MOJO_HOST ? kDeviceToHost
                                                    : kDeviceToDevice;
  Copy copy{destination, source, bytes, kind};
  PinnedMemory& pinned_memory = PinnedMemory::instance();
  PinnedBlock* pinned = nullptr;
  if (!blocking && kind != kDeviceToDevice) {
    pinned = pinned_memory.find(kind == kHostToDevice ? source : destination, bytes);
    if (pinned != nullptr && &pinned->device != &found->device) pinned = nullptr;
    if (pinned == nullptr && kind == kDeviceToHost) blocking = 1;
  }
  if (blocking && !on_gpu()) {
    status = found->synchronize();
    if (status == MOJO_OK) copy_on_host(copy);
    return status;
  }
  if (blocking) {
    if (found->pending() == 0)
      status = run_copy(copy, *found);
    else
      push_copy(*found, copy, nullptr);
    int32_t earlier = found->synchronize();
    return earlier != MOJO_OK ? earlier : status;
  }
  if (bytes == 0) return MOJO_OK;
  bool inline_copy = found->ready_inline();
  if (kind == kHostToDevice && pinned == nullptr && (on_gpu() || found->pending() > 0)) {
    // The caller may change pageable memory as soon as this returns.
    void* staging;
    status = pinned_memory.allocate(found->device, bytes, &staging);
    if (status != MOJO_OK) return status;
    std::memcpy(staging, source, bytes);
    copy.source = staging;
    // On a CPU device the copy is done when its record has run; a GPU's queue uses the buffer for longer.
    if (on_gpu()) pinned_memory.use(*pinned_memory.find(staging, bytes), *found);
    if (inline_copy) {
      status = run_copy(copy, *found);
      pinned_memory.free(staging);
    } else {
      push_copy(*found, copy, staging);
    }
    return status;
  }
  if (kind == kHostToDevice && pinned == nullptr) inline_copy = true;  // an idle CPU stream
  if (inline_copy) {
    if (on_gpu() && pinned != nullptr) pinned_memory.use(*pinned, *found);
    return run_copy(copy, *found);
  }
  if (pinned != nullptr) pinned_memory.use(*pinned, *found);
  push_copy(*found, copy, nullptr);
  return MOJO_OK;
}
