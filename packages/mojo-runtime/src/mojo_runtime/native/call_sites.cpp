// Kernels called from code that is no frontend of ours: a MAX graph reaches a kernel by a text alone, since compiled
// models are stored on disk and hold no addresses.
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core.h"
#include "kernels.h"
#include "thread_pool.h"

namespace mojo {

namespace {

constexpr int64_t kOperandWords = 16;  // data, dtype, ndim, sizes
constexpr int64_t kMaximumRank = kOperandWords - 3;
constexpr int64_t kMaximumTensors = 32;
constexpr int16_t kNewDimension = -1;

// What a text says, see mojo_call_site.
struct CallSite {
  std::string text;
  MojoSlot* slot = nullptr;
  std::vector<int64_t> scalars;
  std::vector<int> given;  // of each scalar, which word of the operand that holds scalars it is; negative: none
  bool has_given = false;
  struct View {
    bool absent = false;
    bool expanded = false;
    bool as_is = true;
    std::vector<int16_t> order;
  };
  std::vector<View> views;
  int64_t operands = 0;
};

struct CallSites {
  std::shared_mutex mutex;
  std::unordered_map<const char*, std::unique_ptr<CallSite>> by_address;
};

CallSites& call_sites() {
  static CallSites* instance = new CallSites;
  return *instance;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = text.find(separator, begin);
    if (end == std::string::npos) end = text.size();
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::unique_ptr<CallSite> parse(const char* text) {
  auto site = std::make_unique<CallSite>();
  site->text = text;
  const size_t key_end = site->text.find('\n');
  const size_t scalars_end = site->text.find('\n', key_end + 1);
  site->slot = mojo_slot(site->text.substr(0, key_end).c_str());
  for (const auto& word : split(site->text.substr(key_end + 1, scalars_end - key_end - 1), ' ')) {
    if (word[0] == '@') {
      site->given.push_back(std::stoi(word.substr(1)));
      site->scalars.push_back(0);
      site->has_given = true;
    } else {
      site->given.push_back(-1);
      site->scalars.push_back(std::stoll(word));
    }
  }
  for (auto& token : split(site->text.substr(scalars_end + 1), ' ')) {
    CallSite::View view;
    view.expanded = token[0] == '*';
    if (view.expanded) token.erase(0, 1);
    view.absent = token == "-";
    view.as_is = token == ".";
    if (!view.absent && !view.as_is && token != "_")
      for (const auto& dimension : split(token, ','))
        view.order.push_back(dimension == "x" ? kNewDimension : static_cast<int16_t>(std::stoi(dimension)));
    site->operands += !view.absent;
    site->views.push_back(std::move(view));
  }
  site->operands += site->has_given;
  return site;
}

const CallSite& find(const char* text) {
  CallSites& sites = call_sites();
  {
    std::shared_lock lock(sites.mutex);
    auto found = sites.by_address.find(text);
    // A model that was unloaded may have left its address to another one.
    if (found != sites.by_address.end() && found->second->text == text) return *found->second;
  }
  auto site = parse(text);
  std::unique_lock lock(sites.mutex);
  auto& place = sites.by_address[text];
  // Somebody may still be calling by the old one.
  if (place != nullptr) place.release();
  place = std::move(site);
  return *place;
}

// Gives a tensor the sizes of another one that it broadcasts to.
void expand(MojoTensor& tensor, int64_t* sizes, int64_t* strides, const MojoTensor& like) {
  const int16_t missing = like.ndim - tensor.ndim;
  for (int16_t d = like.ndim - 1; d >= 0; d--) {
    const bool broadcast = d < missing || (sizes[d - missing] == 1 && like.sizes[d] != 1);
    strides[d] = broadcast ? 0 : strides[d - missing];
    sizes[d] = like.sizes[d];
  }
  tensor.ndim = like.ndim;
  tensor.numel = like.numel;
}

}  // namespace

}  // namespace mojo

using namespace mojo;

int32_t mojo_call_site(const char* text, const int64_t* operands, int64_t count, void* device_context, char* error,
                       int64_t error_capacity) {
  const CallSite& site = find(text);
  if (site.operands != count) {
    std::snprintf(error, error_capacity, "a call site names %lld tensors and was given %lld",
                  static_cast<long long>(site.operands), static_cast<long long>(count));
    return MOJO_RUNTIME_ERROR;
  }
  MojoTensor tensors[kMaximumTensors];
  int64_t sizes[kMaximumTensors][kMaximumRank], strides[kMaximumTensors][kMaximumRank];
  int64_t used = 0;
  for (size_t i = 0; i < site.views.size(); i++) {
    const auto& view = site.views[i];
    MojoTensor& tensor = tensors[i];
    tensor = MojoTensor{};
    if (view.absent) {
      tensor.flags = MOJO_ABSENT;
      continue;
    }
    const int64_t* operand = operands + used++ * kOperandWords;
    const int64_t ndim = operand[2];
    const int64_t* base_sizes = operand + 3;
    int64_t base_strides[kMaximumRank];
    tensor.numel = 1;
    for (int64_t d = ndim - 1; d >= 0; d--) {
      base_strides[d] = tensor.numel;
      tensor.numel *= base_sizes[d];
    }
    tensor.data = tensor.numel == 0 ? nullptr : reinterpret_cast<void*>(operand[0]);
    tensor.dtype = static_cast<int32_t>(operand[1]);
    tensor.ndim = static_cast<int16_t>(view.as_is ? ndim : view.order.size());
    for (int16_t d = 0; d < tensor.ndim; d++) {
      const int16_t from = view.as_is ? d : view.order[d];
      sizes[i][d] = from == kNewDimension ? 1 : base_sizes[from];
      strides[i][d] = from == kNewDimension ? 0 : base_strides[from];
    }
    if (view.expanded) expand(tensor, sizes[i], strides[i], tensors[0]);
    tensor.sizes = sizes[i];
    tensor.strides = strides[i];
  }
  int32_t status = mojo_slot_wait(site.slot);
  if (status != MOJO_OK) {
    std::snprintf(error, error_capacity, "%s", mojo_last_error());
    return status;
  }
  MojoKernelCall call{};
  call.tensors = tensors;
  call.n_tensors = static_cast<int64_t>(site.views.size());
  std::vector<int64_t> scalars;
  call.scalars = site.scalars.data();
  if (site.has_given) {
    const auto* words = reinterpret_cast<const int64_t*>(operands[used * kOperandWords]);
    scalars = site.scalars;
    for (size_t i = 0; i < scalars.size(); i++)
      if (site.given[i] >= 0) scalars[i] = words[site.given[i]];
    call.scalars = scalars.data();
  }
  call.n_scalars = static_cast<int64_t>(site.scalars.size());
  call.device_context = device_context;
  call.parallel_for = mojo_parallel_for;
  call.threads = device_context == nullptr ? mojo_threads() : 1;
  call.error = error;
  call.error_capacity = error_capacity;
  error[0] = '\0';
  return site.slot->kernel.load(std::memory_order_acquire)(&call);
}
