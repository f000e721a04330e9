// Slots: the places where the addresses of compiled kernels are kept.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "mojo_runtime.h"

struct MojoSlot {
  explicit MojoSlot(std::string slot_key) : key(std::move(slot_key)) {}

  std::atomic<MojoKernel> kernel{nullptr};  // set while READY
  std::atomic<int32_t> state{MOJO_SLOT_EMPTY};
  const std::string key;
  int32_t failure_status = MOJO_OK;  // with the message guarded by the mutex of kernels.cpp
  std::string failure_message;
};
