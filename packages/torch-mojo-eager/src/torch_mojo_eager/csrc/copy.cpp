// Copies in every direction, fills, and reading one element.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>

#include "pointwise.h"

namespace torch_mojo {

namespace {

constexpr uint64_t kAnyDtype = ~uint64_t{0};
// Integers, floating types and bool; the codes are torch.ScalarType's.
constexpr uint64_t kRealDtypes = 0b1000'1000'1111'1111;

// A complex tensor's real or imaginary parts as a tensor of their own, on the device or not.
at::Tensor part_of(const at::Tensor& tensor, int64_t part) {
  auto strides = tensor.strides().vec();
  for (auto& stride : strides) stride *= 2;
  const auto dtype = caffe2::TypeMeta::fromScalarType(c10::toRealValueType(tensor.scalar_type()));
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()),
      c10::DispatchKeySet(tensor.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1), dtype);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), strides, tensor.storage_offset() * 2 + part);
  return view;
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value);

KernelFamily& copy_family() {
  static KernelFamily family("mojo_kernels.copy:copy[dtype={0}]", {kAnyDtype});
  return family;
}

KernelFamily& cast_family() {
  static KernelFamily family("mojo_kernels.copy:cast[destination={0},source={1}]", {kRealDtypes, kRealDtypes});
  return family;
}

KernelFamily& fill_family() {
  static KernelFamily family("mojo_kernels.fill:fill[dtype={0}]", {kRealDtypes});
  return family;
}

// A copy that keeps the dtype moves bits: one kernel per element size.
at::ScalarType bits_of(size_t itemsize) {
  switch (itemsize) {
    case 1:
      return at::ScalarType::Byte;
    case 2:
      return at::ScalarType::UInt16;
    case 4:
      return at::ScalarType::UInt32;
    default:
      return at::ScalarType::UInt64;
  }
}

bool is_same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() &&
         ((a.is_contiguous() && b.is_contiguous()) || (a.strides() == b.strides() && a.is_non_overlapping_and_dense()));
}

void* data_of(const at::Tensor& tensor) { return view_of(tensor).data; }

// Both on one device; sizes of `source` broadcast to `destination`.
void copy_on_device(const at::Tensor& destination, const at::Tensor& source) {
  const auto device = destination.device().index();
  if (destination.numel() == 0) return;
  const bool same_dtype = destination.scalar_type() == source.scalar_type();
  if (same_dtype && is_same_dense_layout(destination, source)) {
    check_status(mojo_copy(data_of(destination), device, data_of(source), device, destination.nbytes(),
                           current_stream(device), 0));
    return;
  }
  const bool from_complex = source.is_complex();
  if (destination.is_complex() && (!same_dtype || destination.itemsize() == 16)) {
    copy_on_device(part_of(destination, 0), from_complex ? part_of(source, 0) : source);
    at::Tensor imaginary = part_of(destination, 1);
    if (from_complex) return copy_on_device(imaginary, part_of(source, 1));
    fill_scalar(imaginary, 0);
    return;
  }
  if (from_complex && !destination.is_complex()) return copy_on_device(destination, part_of(source, 0));
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .add_output(destination)
                                    .add_const_input(source)
                                    .resize_outputs(false)
                                    .check_all_same_dtype(false)
                                    .build();
  CallBuilder call;
  const IteratorLayout layout(iterator);
  for (int i = 0; i < iterator.ntensors(); i++) call.add(layout.view(iterator, i));
  MojoSlot* slot;
  if (same_dtype) {
    slot = copy_family().slot(bits_of(destination.itemsize()));
  } else {
    const at::ScalarType dtypes[] = {destination.scalar_type(), source.scalar_type()};
    if (!cast_family().supports(dtypes[0], 0) || !cast_family().supports(dtypes[1], 1))
      throw_dtype_not_implemented("copy_", dtypes, 2);
    slot = cast_family().slot(dtypes, 2);
  }
  call.launch(slot, device, "copy_");
}

at::Tensor contiguous_on_device(const at::Tensor& source, at::ScalarType dtype, at::IntArrayRef sizes) {
  if (source.is_contiguous() && source.scalar_type() == dtype && source.sizes() == sizes) return source;
  at::Tensor result = empty(sizes, dtype, source.device().index());
  copy_on_device(result, source);
  return result;
}

void copy_from_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const auto device = destination.device().index();
  const at::Tensor host = source.to(destination.scalar_type()).expand(destination.sizes()).contiguous();
  const at::Tensor target =
      destination.is_contiguous() ? destination : empty(destination.sizes(), destination.scalar_type(), device);
  check_status(mojo_copy(data_of(target), device, host.const_data_ptr(), MOJO_HOST, host.nbytes(),
                         current_stream(device), !non_blocking));
  if (!target.is_same(destination)) copy_on_device(destination, target);
}

void copy_to_host(const at::Tensor& destination, const at::Tensor& source, bool non_blocking) {
  const auto device = source.device().index();
  const at::Tensor ready = contiguous_on_device(source, source.scalar_type(), source.sizes());
  if (destination.is_contiguous() && destination.scalar_type() == source.scalar_type() &&
      destination.sizes() == source.sizes()) {
    check_status(mojo_copy(destination.mutable_data_ptr(), MOJO_HOST, data_of(ready), device, ready.nbytes(),
                           current_stream(device), !non_blocking));
    return;
  }
  const at::Tensor host = at::detail::empty_cpu(ready.sizes(), ready.scalar_type());
  check_status(
      mojo_copy(host.mutable_data_ptr(), MOJO_HOST, data_of(ready), device, ready.nbytes(), current_stream(device), 1));
  destination.copy_(host);
}

// Makes the current stream of `waiter` wait for what the current stream of `producer` holds.
void wait_across(c10::DeviceIndex waiter, c10::DeviceIndex producer) {
  void* event = nullptr;
  check_status(mojo_event_create(producer, 0, &event));
  const std::unique_ptr<void, void (*)(void*)> owner(event, &mojo_event_destroy);
  check_status(mojo_event_record(event, producer, current_stream(producer)));
  check_status(mojo_event_wait(event, waiter, current_stream(waiter)));
}

void copy_across_devices(const at::Tensor& destination, const at::Tensor& source) {
  const auto to = destination.device().index(), from = source.device().index();
  const at::Tensor ready = contiguous_on_device(source, destination.scalar_type(), destination.sizes());
  const at::Tensor target =
      destination.is_contiguous() ? destination : empty(destination.sizes(), destination.scalar_type(), to);
  wait_across(to, from);
  check_status(mojo_copy(data_of(target), to, data_of(ready), from, ready.nbytes(), current_stream(to), 0));
  wait_across(from, to);  // so that the source is not overwritten or freed before it was read
  if (!target.is_same(destination)) copy_on_device(destination, target);
}

// aten::_copy_from(self, dst, non_blocking): `self` is the source.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (destination.numel() == 0 || destination.is_same(source)) return destination;
  // Lazy conjugates and negatives: the elements as they lie are copied, then changed where they are.
  if (source.is_conj() != destination.is_conj()) {
    at::Tensor target = destination.is_conj() ? destination.conj() : destination;
    copy_from(source.is_conj() ? source.conj() : source, target, non_blocking);
    target.conj_physical_();
    return destination;
  }
  if (source.is_neg() != destination.is_neg()) {
    at::Tensor target = destination.is_neg() ? destination._neg_view() : destination;
    copy_from(source.is_neg() ? source._neg_view() : source, target, non_blocking);
    target.neg_();
    return destination;
  }
  const bool from_mojo = source.device().type() == kMojo, to_mojo = destination.device().type() == kMojo;
  TORCH_CHECK_NOT_IMPLEMENTED((from_mojo || source.is_cpu()) && (to_mojo || destination.is_cpu()), "aten::copy_ from ",
                              source.device(), " to ", destination.device(),
                              " is not implemented; copy through the CPU with .cpu()");
  if (to_mojo) at::assert_no_internal_overlap(destination);
  if (!from_mojo) {
    copy_from_host(destination, source, non_blocking);
  } else if (!to_mojo) {
    copy_to_host(destination, source, non_blocking);
  } else if (source.device() != destination.device()) {
    copy_across_devices(destination, source);
  } else {
    copy_on_device(destination, source);
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  alignas(16) char bytes[16];
  const auto device = self.device().index();
  check_status(mojo_copy(bytes, MOJO_HOST, data_of(self), device, self.itemsize(), current_stream(device), 1));
  return load_scalar(bytes, self.scalar_type());
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  const at::ScalarType dtype = self.scalar_type();
  if (c10::isComplexType(dtype)) {
    const c10::complex<double> number = value.toComplexDouble();
    at::Tensor real = part_of(self, 0), imaginary = part_of(self, 1);
    fill_scalar(real, number.real());
    fill_scalar(imaginary, number.imag());
    return self;
  }
  if (C10_UNLIKELY(!fill_family().supports(dtype))) throw_dtype_not_implemented("fill_", &dtype, 1);
  alignas(16) char stored[16];
  store_scalar(value, dtype, stored);  // checks the range
  const at::Scalar number = dtype == at::ScalarType::Bool ? load_scalar(stored, dtype) : value;
  const auto device = self.device().index();
  CallBuilder call;
  if (self.is_contiguous()) {
    const int64_t numel = self.numel(), stride = 1;
    MojoTensor view = view_of(self);
    view.sizes = &numel;
    view.strides = &stride;
    view.ndim = 1;
    call.add(view);
    call.number(number);
    call.launch(fill_family().slot(dtype), device, "fill_");
    return self;
  }
  at::TensorIterator iterator = at::TensorIterator::nullary_op(self);
  const IteratorLayout layout(iterator);
  call.add(layout.view(iterator, 0));
  call.number(number);
  call.launch(fill_family().slot(dtype), device, "fill_");
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  copy_from(value, self, false);
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill_scalar(self, 0); }

}  // namespace

void register_copies() {
  const auto key = c10::DispatchKey::PrivateUse1;
#define TORCH_MOJO_KERNEL(function) c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function))
  register_kernel("_copy_from", key, TORCH_MOJO_KERNEL(copy_from));
  for (const auto lazy : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    register_kernel("_copy_from", lazy, c10::KernelFunction::makeFallthrough());
  register_kernel("_copy_from_and_resize", key, TORCH_MOJO_KERNEL(copy_from_and_resize));
  register_kernel("_local_scalar_dense", key, TORCH_MOJO_KERNEL(local_scalar_dense));
  register_kernel("fill_.Scalar", key, TORCH_MOJO_KERNEL(fill_scalar));
  register_kernel("fill_.Tensor", key, TORCH_MOJO_KERNEL(fill_tensor));
  register_kernel("zero_", key, TORCH_MOJO_KERNEL(zero));
#undef TORCH_MOJO_KERNEL
}

}  // namespace torch_mojo
