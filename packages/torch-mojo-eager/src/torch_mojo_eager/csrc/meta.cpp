// Meta functions of ops for which torch has none in C++, or one that does not keep the memory format that its CPU
// kernels keep: they check the arguments and say what the outputs are.
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <unordered_map>

#include "structured.h"

namespace torch_mojo {
namespace {

using Arguments = const c10::IValue*;
using Metas = std::vector<at::Tensor>;
using Sizes = c10::DimVector;

at::Tensor output(at::IntArrayRef sizes, at::ScalarType dtype, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return at::detail::empty_meta(sizes, dtype, format);
}

Sizes sizes_of(const at::Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

// ---- padding -------------------------------------------------------------------------------------------------------

Metas constant_pad(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const Sizes pad = arguments[1].toDimVector();
  const auto pairs = static_cast<int64_t>(pad.size() / 2);
  TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  TORCH_CHECK(pairs <= self.dim(), "Length of pad should be no more than twice the number of dimensions of the input. ",
              "Pad length is ", pad.size(), " while the input has ", self.dim(), " dimensions.");
  Sizes sizes = sizes_of(self);
  for (int64_t i = 0; i < pairs; i++) {
    const int64_t d = self.dim() - 1 - i;
    sizes[d] += pad[2 * i] + pad[2 * i + 1];
    TORCH_CHECK(sizes[d] >= 0, "The input size ", self.size(d), ", plus negative padding ", pad[2 * i], " and ",
                pad[2 * i + 1], " resulted in a negative output size, which is invalid. Check dimension ", d,
                " of your input.");
  }
  return {output(sizes, self.scalar_type(), self.suggest_memory_format())};
}

// The sizes of a result of padding with elements of the input.
template <int rank, bool reflects>
Sizes padded(const at::Tensor& self, const Sizes& padding) {
  TORCH_CHECK(padding.size() == 2 * rank, "padding size is expected to be ", 2 * rank, ", but got: ", padding.size());
  const bool batched = self.dim() == rank + 2;
  const bool has_rank = batched || self.dim() == rank + 1;
  TORCH_CHECK(has_rank && std::ranges::count(self.sizes().slice(batched), 0) == 0, "Expected ", rank + 1, "D or ",
              rank + 2, "D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, ",
              "but got: ", self.sizes());
  Sizes sizes = sizes_of(self);
  for (int i = 0; i < rank; i++) {
    const int64_t d = self.dim() - 1 - i, before = padding[2 * i], after = padding[2 * i + 1];
    TORCH_CHECK(!reflects || (before < sizes[d] && after < sizes[d]),
                "Padding size should be less than the corresponding input dimension, but got: padding (", before, ", ",
                after, ") at dimension ", d, " of input ", self.sizes());
    sizes[d] += before + after;
  }
  const auto spatial = at::IntArrayRef(sizes).slice(sizes.size() - rank);
  TORCH_CHECK(*std::ranges::min_element(spatial) >= 1, "input of spatial sizes ", self.sizes().slice(self.dim() - rank),
              " is too small. Calculated output sizes ", spatial, " must be >= 1 in every dimension");
  return sizes;
}

template <int rank, bool reflects>
Metas pad(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const Sizes sizes = padded<rank, reflects>(self, arguments[1].toDimVector());
  return {output(sizes, self.scalar_type(), self.suggest_memory_format())};
}

template <int rank, bool reflects>
Metas pad_backward(Arguments arguments) {
  const at::Tensor &grad_output = arguments[0].toTensor(), &self = arguments[1].toTensor();
  const Sizes sizes = padded<rank, reflects>(self, arguments[2].toDimVector());
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(sizes),
              "grad_output sizes unexpected. Expected: ", at::IntArrayRef(sizes), ", Got: ", grad_output.sizes());
  return {output(self.sizes(), self.scalar_type(), self.suggest_memory_format())};
}

// ---- pooling -------------------------------------------------------------------------------------------------------

// Over 3 dimensions CPU torch gives contiguous results.
template <int rank>
at::MemoryFormat pooled_format(const at::Tensor& self) {
  return rank == 2 ? self.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

template <int rank>
void check_spatial(const at::Tensor& self, const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(self.dim() == rank + 1 || self.dim() == rank + 2, "adaptive_avg_pool", rank, "d(): Expected ", rank + 1,
              "D or ", rank + 2, "D tensor, but got ", self.sizes());
  for (int64_t d = self.dim() - rank; d < self.dim(); d++)
    TORCH_CHECK(tensor.size(d) != 0, "adaptive_avg_pool", rank, "d(): Expected ", what,
                " to have non-zero size for non-batch dimensions, but ", what, " has sizes ", tensor.sizes(),
                " with dimension ", d, " being empty");
}

template <int rank>
Metas adaptive_average(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const Sizes wanted = arguments[1].toDimVector();
  TORCH_CHECK(wanted.size() == rank, "adaptive_avg_pool", rank, "d: output_size must be ", rank);
  check_spatial<rank>(self, "input", self);
  TORCH_CHECK(*std::ranges::min_element(wanted) >= 0, "adaptive_avg_pool", rank,
              "d(): elements of output_size must be greater than or equal to 0, got ", at::IntArrayRef(wanted));
  Sizes sizes = sizes_of(self);
  std::ranges::copy(wanted, sizes.end() - rank);
  return {output(sizes, self.scalar_type(), pooled_format<rank>(self))};
}

template <int rank>
Metas adaptive_average_backward(Arguments arguments) {
  const at::Tensor &grad_output = arguments[0].toTensor(), &self = arguments[1].toTensor();
  const bool fits = grad_output.dim() == self.dim() &&
                    grad_output.sizes().slice(0, self.dim() - rank) == self.sizes().slice(0, self.dim() - rank);
  TORCH_CHECK(fits, "adaptive_avg_pool", rank, "d_backward(): Expected grad_output of the batch and channels of ",
              self.sizes(), ", but got ", grad_output.sizes());
  TORCH_CHECK(grad_output.scalar_type() == self.scalar_type(), "adaptive_avg_pool", rank,
              "d_backward(): Expected dtype ", self.scalar_type(), " for grad_output but got dtype ",
              grad_output.scalar_type());
  check_spatial<rank>(self, "grad_output", grad_output);
  return {output(self.sizes(), self.scalar_type(), pooled_format<rank>(self))};
}

Metas fractional_max_pool3d_backward(Arguments arguments) {
  const at::Tensor& self = arguments[1].toTensor();
  Sizes expected = sizes_of(self);
  std::ranges::copy(arguments[3].toDimVector(), expected.end() - 3);
  for (const int i : {0, 4})
    TORCH_CHECK(arguments[i].toTensor().sizes() == at::IntArrayRef(expected),
                "fractional_max_pool3d_backward(): Expected ", i == 0 ? "grad_output" : "indices", " of sizes ",
                at::IntArrayRef(expected), ", but got ", arguments[i].toTensor().sizes());
  return {output(self.sizes(), self.scalar_type())};
}

// ---- sampling at positions of a grid -------------------------------------------------------------------------------

template <int rank>
Sizes sampled(const at::Tensor& input, const at::Tensor& grid, int64_t mode, int64_t padding) {
  TORCH_CHECK(input.scalar_type() == grid.scalar_type(),
              "grid_sampler(): expected input and grid to have same dtype, but input has ", input.scalar_type(),
              " and grid has ", grid.scalar_type());
  TORCH_CHECK(input.dim() == rank + 2 && grid.dim() == rank + 2, "grid_sampler(): expected ", rank + 2,
              "D input and grid with same number of dimensions, but got input with sizes ", input.sizes(),
              " and grid with sizes ", grid.sizes());
  TORCH_CHECK(input.size(0) == grid.size(0),
              "grid_sampler(): expected grid and input to have same batch size, but got input with sizes ",
              input.sizes(), " and grid with sizes ", grid.sizes());
  TORCH_CHECK(grid.size(-1) == rank, "grid_sampler(): expected grid to have size ", rank,
              " in last dimension, but got grid with sizes ", grid.sizes());
  TORCH_CHECK(std::ranges::count(input.sizes().slice(2), 0) == 0,
              "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes ",
              input.sizes());
  TORCH_CHECK(0 <= mode && mode < 3 && 0 <= padding && padding < 3, "grid_sampler(): unknown interpolation mode ", mode,
              " or padding mode ", padding);
  Sizes sizes = sizes_of(input);
  std::ranges::copy(grid.sizes().slice(1, rank), sizes.begin() + 2);
  return sizes;
}

template <int rank>
Metas grid_sample(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {output(sampled<rank>(input, arguments[1].toTensor(), arguments[2].toInt(), arguments[3].toInt()),
                 input.scalar_type())};
}

template <int rank>
Metas grid_sample_backward(Arguments arguments) {
  const at::Tensor &grad_output = arguments[0].toTensor(), &input = arguments[1].toTensor();
  const at::Tensor& grid = arguments[2].toTensor();
  const Sizes expected = sampled<rank>(input, grid, arguments[3].toInt(), arguments[4].toInt());
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(expected) && grad_output.scalar_type() == input.scalar_type(),
              "grid_sampler_", rank, "d_backward(): expected grad_output of sizes ", at::IntArrayRef(expected),
              " and dtype ", input.scalar_type(), ", but got ", grad_output.sizes(), " and ",
              grad_output.scalar_type());
  const auto mask = arguments[6].toBoolList();
  auto gradient = [](bool wanted, const at::Tensor& of) {
    return wanted ? output(of.sizes(), of.scalar_type()) : at::Tensor();
  };
  return {gradient(mask[0], input), gradient(mask[1], grid)};
}

// ---- order statistics ----------------------------------------------------------------------------------------------

// One element along a dimension, and its position.
Metas selected(const char* name, const at::Tensor& self, int64_t dim, bool keepdim) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  Sizes sizes = sizes_of(self);
  if (self.dim() > 0) {
    TORCH_CHECK_INDEX(sizes[dim] != 0, name, "(): Expected reduction dim ", dim, " to have non-zero size.");
    if (keepdim) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  return {output(sizes, self.scalar_type()), output(sizes, at::kLong)};
}

Metas kthvalue(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const int64_t k = arguments[1].toInt(), dim = at::maybe_wrap_dim(arguments[2].toInt(), self.dim());
  Metas metas = selected("kthvalue", self, dim, arguments[3].toBool());
  TORCH_CHECK(1 <= k && k <= (self.dim() > 0 ? self.size(dim) : 1),
              "kthvalue(): selected number k out of range for dimension ", dim);
  return metas;
}

Metas median(Arguments arguments) {
  return selected("median", arguments[0].toTensor(), arguments[1].toInt(), arguments[2].toBool());
}

}  // namespace

MetaFunction find_meta(const std::string& functional) {
  static const std::unordered_map<std::string, MetaFunction> functions = {
      {"constant_pad_nd", constant_pad},
      {"reflection_pad1d", pad<1, true>},
      {"reflection_pad2d", pad<2, true>},
      {"reflection_pad3d", pad<3, true>},
      {"replication_pad1d", pad<1, false>},
      {"replication_pad2d", pad<2, false>},
      {"replication_pad3d", pad<3, false>},
      {"reflection_pad1d_backward", pad_backward<1, true>},
      {"reflection_pad2d_backward", pad_backward<2, true>},
      {"reflection_pad3d_backward", pad_backward<3, true>},
      {"replication_pad1d_backward", pad_backward<1, false>},
      {"replication_pad2d_backward", pad_backward<2, false>},
      {"replication_pad3d_backward", pad_backward<3, false>},
      {"adaptive_avg_pool2d", adaptive_average<2>},
      {"adaptive_avg_pool3d", adaptive_average<3>},
      {"_adaptive_avg_pool2d", adaptive_average<2>},
      {"_adaptive_avg_pool3d", adaptive_average<3>},
      {"_adaptive_avg_pool2d_backward", adaptive_average_backward<2>},
      {"_adaptive_avg_pool3d_backward", adaptive_average_backward<3>},
      {"fractional_max_pool3d_backward", fractional_max_pool3d_backward},
      {"grid_sampler_2d", grid_sample<2>},
      {"grid_sampler_3d", grid_sample<3>},
      {"grid_sampler_2d_backward", grid_sample_backward<2>},
      {"grid_sampler_3d_backward", grid_sample_backward<3>},
      {"kthvalue", kthvalue},
      {"median.dim", median},
      {"nanmedian.dim", median},
  };
  const auto found = functions.find(functional);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace torch_mojo
