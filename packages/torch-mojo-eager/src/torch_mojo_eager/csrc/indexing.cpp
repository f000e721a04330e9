// Indexing: hot ops that torch does not allocate outputs for.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/view_as_real.h>

#include "kernel_call.h"

namespace at::native {
TORCH_API bool resize_output(const at::Tensor& output, at::IntArrayRef shape);
}

namespace torch_mojo {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;
using Dimensions = c10::SmallVector<int64_t, 8>;

uint64_t mask_of(std::initializer_list<at::ScalarType> dtypes) {
  uint64_t mask = 0;
  for (const auto dtype : dtypes) mask |= uint64_t{1} << static_cast<int>(dtype);
  return mask;
}

uint64_t element_dtypes() {
  return mask_of({at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBool,
                  at::kBFloat16});
}

// ---- index_select --------------------------------------------------------------------------------------------------

KernelFamily& slices_family() {
  static KernelFamily family("mojo_kernels.indexing.gather_scatter:gather[dtype={0},index={1},indices=slices]",
                             {element_dtypes() | mask_of({at::kComplexFloat}), mask_of({at::kLong, at::kInt})});
  return family;
}

// Checks the arguments; returns the dimension from 0 and appends the result's sizes.
int64_t check_index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index, Dimensions& sizes) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
              "index_select(): Expected dtype int32 or int64 for index");
  dim = at::maybe_wrap_dim(dim, self.dim());
  check_same_device(index, self.device().index(), "index_select");
  sizes.assign(self.sizes().begin(), self.sizes().end());
  if (self.dim() > 0) {
    sizes[dim] = index.numel();
  } else {
    TORCH_CHECK(index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ", index.numel(),
                " value(s)");
  }
  return dim;
}

void launch_index_select(const at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const std::array<at::ScalarType, 2> dtypes{self.scalar_type(), index.scalar_type()};
  if (!slices_family().supports(dtypes[0])) throw_dtype_not_implemented("index_select", dtypes.data(), 1);
  const auto device = self.device().index();
  CallBuilder call;
  for (const at::Tensor& tensor : {out, self, index}) call.add(tensor);
  call.word(dim);
  CurrentDevice guard(device);
  call.launch(slices_family().slot(dtypes.data(), 2), device, "index_select");
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  Dimensions sizes;
  dim = check_index_select(self, dim, index, sizes);
  at::Tensor out = empty(sizes, self.scalar_type(), self.device().index());
  launch_index_select(out, self, dim, index);
  return out;
}

at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  Dimensions sizes;
  dim = check_index_select(self, dim, index, sizes);
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "index_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  at::native::resize_output(out, sizes);
  launch_index_select(out, self, dim, index);
  return out;
}

// ---- embedding -----------------------------------------------------------------------------------------------------

KernelFamily& table_gradient_family() {
  static KernelFamily family(
      "mojo_kernels.embedding:embedding_backward[dtype={0},index={1}]",
      {mask_of({at::kHalf, at::kFloat, at::kDouble, at::kBFloat16}), mask_of({at::kLong, at::kInt})});
  return family;
}

// The gradient [rows, columns] of an embedding table.
at::Tensor embedding_dense_backward(const at::Tensor& grad_output, const at::Tensor& indices, c10::SymInt sym_rows,
                                    c10::SymInt sym_padding, bool scales_by_frequency) {
  const int64_t rows = sym_rows.guard_int(__FILE__, __LINE__), padding = sym_padding.guard_int(__FILE__, __LINE__);
  const std::array<at::ScalarType, 2> dtypes{grad_output.scalar_type(), indices.scalar_type()};
  KernelFamily& family = table_gradient_family();
  if (!family.supports(dtypes[0], 0) || !family.supports(dtypes[1], 1))
    throw_dtype_not_implemented("embedding_dense_backward", dtypes.data(), 2);
  const auto device = grad_output.device().index();
  check_same_device(indices, device, "embedding_dense_backward");
  const int64_t columns = grad_output.size(-1);
  at::Tensor result = empty({rows, columns}, dtypes[0], device);
  const at::Tensor gradient = grad_output.reshape({indices.numel(), columns}).contiguous();
  const at::Tensor lookups = indices.reshape({indices.numel()}).contiguous();
  CallBuilder call;
  for (const at::Tensor& tensor : {result, gradient, lookups}) call.add(tensor);
  call.word(padding);
  call.word(scales_by_frequency);
  CurrentDevice guard(device);
  call.launch(family.slot(dtypes.data(), 2), device, "embedding_dense_backward");
  return result;
}

// ---- embedding_bag -------------------------------------------------------------------------------------------------

using Bags = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
constexpr int64_t kSum = 0, kMax = 2;

KernelFamily& bag_family() {
  static KernelFamily family("mojo_kernels.embedding_bag:embedding_bag[dtype={0},index={1}]",
                             {kFloating, mask_of({at::kLong, at::kInt})});
  return family;
}

void check_bags(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, int64_t mode,
                const at::Tensor& per_sample_weights, bool include_last_offset) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D, but got ", weight.dim(), " dimensions");
  TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2,
              "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices.dim());
  TORCH_CHECK(offsets.dim() == 1, "offsets has to be a 1D Tensor, but got Tensor of dimension ", offsets.dim());
  for (const auto& [name, dtype] :
       {std::pair("indices", indices.scalar_type()), std::pair("offsets", offsets.scalar_type())})
    TORCH_CHECK(bag_family().supports(dtype, 1), "Expected tensor for argument '", name,
                "' to have one of the following scalar types: Long, Int; but got torch.", dtype_name(dtype),
                " instead");
  if (per_sample_weights.defined()) {
    TORCH_CHECK(mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
    TORCH_CHECK(per_sample_weights.scalar_type() == weight.scalar_type(), "expected per_sample_weights of dtype torch.",
                dtype_name(weight.scalar_type()), " as the weight, got torch.",
                dtype_name(per_sample_weights.scalar_type()));
    TORCH_CHECK(per_sample_weights.numel() == indices.numel(), "expected as many per_sample_weights as indices");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(bag_family().supports(weight.scalar_type()),
                              "\"embedding_bag\" not implemented for torch.", dtype_name(weight.scalar_type()),
                              "; convert the table to float32");
  TORCH_CHECK(!include_last_offset || offsets.numel() >= 1,
              "include_last_offset: number of offset should be at least 1");
}

// Sums, means or maxima of the rows that bags look up; the bag of each lookup, bag sizes, rows of maxima.
Bags embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                   bool /*scale_grad_by_freq*/, int64_t mode, bool /*sparse*/,
                   const std::optional<at::Tensor>& given_weights, bool include_last_offset, int64_t padding) {
  const at::Tensor per_sample_weights = given_weights.value_or(at::Tensor());
  check_bags(weight, indices, offsets, mode, per_sample_weights, include_last_offset);
  const auto index_type = at::promote_types(indices.scalar_type(), offsets.scalar_type());
  const auto device = weight.device().index();
  auto vector = [](const at::Tensor& tensor, at::ScalarType dtype) {
    return tensor.to(dtype).reshape({-1}).contiguous();
  };
  const at::Tensor lookups = vector(indices, index_type), starts = vector(offsets, index_type);
  const int64_t bags = starts.numel() - include_last_offset, columns = weight.size(1);
  at::Tensor output = empty({bags, columns}, weight.scalar_type(), device);
  at::Tensor bag_of = empty({lookups.numel()}, index_type, device);
  at::Tensor bag_size = empty({bags}, index_type, device);
  at::Tensor maxima = mode == kMax ? empty({bags, columns}, index_type, device) : empty({0}, index_type, device);
  if (bags == 0) return {output, bag_of, bag_size, maxima};
  CallBuilder call;
  for (const at::Tensor& tensor : {output, bag_of, bag_size}) call.add(tensor);
  mode == kMax ? call.add(maxima) : call.add_absent();
  for (const at::Tensor& tensor : {weight, lookups, starts}) call.add(tensor);
  at::Tensor factors;
  if (per_sample_weights.defined()) {
    factors = vector(per_sample_weights, weight.scalar_type());
    call.add(factors);
  } else {
    call.add_absent();
  }
  for (const int64_t word : {int64_t{include_last_offset}, mode, padding}) call.word(word);
  const std::array<at::ScalarType, 2> dtypes{weight.scalar_type(), index_type};
  CurrentDevice guard(device);
  call.launch(bag_family().slot(dtypes.data(), 2), device, "embedding_bag");
  return {output, bag_of, bag_size, maxima};
}

// ---- index and index_put_ ------------------------------------------------------------------------------------------

enum Action { kGet, kSet, kAdd };

// A kernel is made for an action and a number of index tensors.
KernelFamily& index_family(Action action, size_t count) {
  static std::mutex mutex;
  static std::unordered_map<size_t, std::unique_ptr<KernelFamily>> families;
  static constexpr const char* names[] = {"get", "set", "add"};
  std::lock_guard<std::mutex> lock(mutex);
  auto& family = families[count * 3 + action];
  if (family == nullptr)
    family = std::make_unique<KernelFamily>(
        "mojo_kernels.indexing.advanced:index[count=" + std::to_string(count) + ",dtype={0},op=" + names[action] + "]",
        std::vector<uint64_t>{element_dtypes() | (action == kAdd ? 0 : mask_of({at::kComplexFloat}))});
  return *family;
}

// The elements of a tensor that indices choose, as views with the sizes of the result: of the tensor, with stride 0
// along the dimensions that the indices span, and of each index.
class Selection {
 public:
  Selection(const at::Tensor& self, const Indices& indices) : self_(self) {
    at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
    for (size_t i = 0; i < indices.size(); i++) {
      const std::optional<at::Tensor> index = indices.get(i);
      if (!index || !index->defined() || (index->device().is_cpu() && self.device().type() == kMojo)) continue;
      TORCH_CHECK(index->device() == self.device(),
                  "indices should be either on cpu or on the same device as the indexed tensor (", self.device(), ")");
    }
    const auto expanded = at::native::expandTensors(self, indices, /*ensure_same_device=*/true);
    TORCH_CHECK_INDEX(static_cast<int64_t>(expanded.size()) <= self.dim(), "too many indices for tensor of dimension ",
                      self.dim(), " (got ", expanded.size(), ")");
    for (size_t d = 0; d < expanded.size(); d++) {
      if (!expanded[d].defined()) continue;
      indexed_.push_back(static_cast<int64_t>(d));
      tensors_.push_back(expanded[d].scalar_type() == at::kLong ? expanded[d] : expanded[d].to(at::kLong));
    }
    if (indexed_.empty()) return;
    if (tensors_.size() > 1) broadcast();
    arrange();
  }

  bool is_everything() const { return indexed_.empty(); }
  at::IntArrayRef sizes() const { return sizes_; }

  // Moves between the chosen elements and `values`, a tensor of the same sizes.
  void move(Action action, const at::Tensor& values, const std::string& op) const {
    const auto dtype = self_.scalar_type();
    KernelFamily& family = index_family(action, tensors_.size());
    if (!family.supports(dtype)) throw_dtype_not_implemented(op, &dtype, 1);
    CallBuilder call;
    call.add(values);
    call.add(view(self_, strides_));
    for (size_t i = 0; i < tensors_.size(); i++) call.add(view(tensors_[i], index_strides_[i]));
    for (const int64_t d : indexed_) {
      call.word(d);
      call.word(self_.size(d));
      call.word(self_.stride(d));
    }
    const auto device = self_.device().index();
    CurrentDevice guard(device);
    call.launch(family.slot(dtype), device, op);
  }

 private:
  void broadcast() {
    try {
      tensors_ = at::expand_outplace(tensors_);
    } catch (const c10::Error&) {
      std::stringstream shapes;
      for (size_t i = 0; i < tensors_.size(); i++) shapes << (i ? ", " : "") << tensors_[i].sizes();
      TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                        shapes.str());
    }
  }

  // The indices' dimensions replace the indexed ones where those are neighbours, else they come first.
  void arrange() {
    const bool neighbours = indexed_.back() - indexed_.front() + 1 == static_cast<int64_t>(indexed_.size());
    const int64_t first = neighbours ? indexed_.front() : 0;
    index_strides_.resize(tensors_.size());
    auto append = [&](int64_t size, int64_t stride, int64_t dimension) {
      sizes_.push_back(size);
      strides_.push_back(stride);
      for (size_t i = 0; i < tensors_.size(); i++)
        index_strides_[i].push_back(dimension < 0 ? 0 : tensors_[i].stride(dimension));
    };
    bool is_empty = false;
    auto append_kept = [&](int64_t start, int64_t end) {
      for (int64_t d = start; d < end; d++)
        if (std::find(indexed_.begin(), indexed_.end(), d) == indexed_.end())
          append(self_.size(d), self_.stride(d), -1);
    };
    append_kept(0, first);
    for (int64_t d = 0; d < tensors_[0].dim(); d++) append(tensors_[0].size(d), 0, d);
    append_kept(first, self_.dim());
    for (const int64_t size : sizes_) is_empty = is_empty || size == 0;
    for (const int64_t d : indexed_)
      TORCH_CHECK_INDEX(self_.size(d) != 0 || is_empty, "index is out of bounds for dimension with size 0");
  }

  MojoTensor view(const at::Tensor& tensor, const Dimensions& strides) const {
    MojoTensor result = view_of(tensor);
    result.sizes = sizes_.data();
    result.strides = strides.data();
    result.ndim = static_cast<int16_t>(sizes_.size());
    result.numel = c10::multiply_integers(sizes_);
    return result;
  }

  const at::Tensor& self_;
  c10::SmallVector<int64_t, 4> indexed_;
  std::vector<at::Tensor> tensors_;
  Dimensions sizes_, strides_;
  c10::SmallVector<Dimensions, 2> index_strides_;
};

at::Tensor index(const at::Tensor& self, const Indices& indices) {
  const Selection selection(self, indices);
  if (selection.is_everything()) return self.clone(at::MemoryFormat::Contiguous);
  at::Tensor out = empty(selection.sizes(), self.scalar_type(), self.device().index());
  if (out.numel() > 0) selection.move(kGet, out, "index");
  return out;
}

// A mask that spans the first dimensions, for a number; nothing else is given.
bool fills_mask(const at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  if (accumulate || values.numel() != 1 || indices.size() == 0) return false;
  const std::optional<at::Tensor> first = indices.get(0);
  if (!first || !first->defined() || first->scalar_type() != at::kBool || first->device() != self.device())
    return false;
  for (size_t i = 1; i < indices.size(); i++)
    if (indices.get(i) && indices.get(i)->defined()) return false;
  return first->dim() <= self.dim() && first->sizes() == self.sizes().slice(0, first->dim());
}

at::Tensor& index_put(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate,
                      bool /*unsafe*/) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  if (fills_mask(self, indices, values, accumulate)) {
    at::Tensor mask = *indices.get(0);
    while (mask.dim() < self.dim()) mask = mask.unsqueeze(-1);
    return self.masked_fill_(mask, values.dim() == 0 ? values : values.reshape({}));
  }
  if (accumulate && self.is_complex()) {
    for (int64_t part = 0; part < 2; part++) {
      at::Tensor sums = at::view_as_real(self).select(-1, part);
      index_put(sums, indices, at::view_as_real(values.resolve_conj()).select(-1, part), true, false);
    }
    return self;
  }
  const Selection selection(self, indices);
  check_same_device(values, self.device().index(), "index_put_");
  const at::Tensor given = values.to(self.device());
  if (selection.is_everything()) {
    accumulate ? self.add_(given) : self.copy_(given);
    return self;
  }
  TORCH_CHECK(at::is_expandable_to(given.sizes(), selection.sizes()), "shape mismatch: value tensor of shape ",
              given.sizes(), " cannot be broadcast to indexing result of shape ", selection.sizes());
  const at::Tensor spread = given.sizes() == selection.sizes() ? given : given.expand(selection.sizes());
  if (spread.numel() > 0) selection.move(accumulate ? kAdd : kSet, spread, "index_put_");
  return self;
}

}  // namespace

void register_indexing() {
  const auto key = c10::DispatchKey::PrivateUse1;
  register_kernel("index_select", key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(index_select)));
  register_kernel("index_select.out", key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(index_select_out)));
  register_kernel("embedding_dense_backward", key,
                  c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(embedding_dense_backward)));
  for (const char* name : {"_embedding_bag", "_embedding_bag_forward_only"})
    register_kernel(name, key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(embedding_bag)));
  register_kernel("index.Tensor", key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(index)));
  register_kernel("_index_put_impl_", key, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(index_put)));
}

}  // namespace torch_mojo
