/* The one calling convention of every kernel: a C function that takes a pointer to a MojoKernelCall.
 *
 * The Mojo side of this file is mojo_kernels/abi.mojo; the two must agree byte for byte (a test compares them).
 */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOJO_KERNEL_ABI_VERSION 1
#define MOJO_MAX_DIMENSIONS 64

/* Element types, numbered like torch.ScalarType so that a frontend passes its code through. */
enum MojoDType {
  MOJO_UINT8 = 0,
  MOJO_INT8 = 1,
  MOJO_INT16 = 2,
  MOJO_INT32 = 3,
  MOJO_INT64 = 4,
  MOJO_FLOAT16 = 5,
  MOJO_FLOAT32 = 6,
  MOJO_FLOAT64 = 7,
  MOJO_COMPLEX64 = 9,
  MOJO_COMPLEX128 = 10,
  MOJO_BOOL = 11,
  MOJO_BFLOAT16 = 15,
  MOJO_UINT16 = 27,
  MOJO_UINT32 = 28,
  MOJO_UINT64 = 29,
};

/* What a kernel or a runtime function returns. The names are those of the Python exceptions they become. */
enum MojoStatus {
  MOJO_OK = 0,
  MOJO_NOT_IMPLEMENTED = 1,
  MOJO_RUNTIME_ERROR = 2,
  MOJO_OUT_OF_MEMORY = 3,
  MOJO_INDEX_ERROR = 4,
  MOJO_VALUE_ERROR = 5,
  MOJO_TYPE_ERROR = 6,
};

enum MojoTensorFlags {
  /* `data` is host memory inside the call (one element): a GPU kernel passes the value by argument. */
  MOJO_HOST_SCALAR = 1,
  /* An optional tensor that was not given: data is NULL, ndim 0, numel 0. */
  MOJO_ABSENT = 2,
};

/* A strided view. 40 bytes. */
typedef struct MojoTensor {
  void* data;             /* first element, the storage offset applied; NULL when numel is 0 */
  const int64_t* sizes;   /* [ndim] */
  const int64_t* strides; /* [ndim], in elements; 0 where expanded */
  int64_t numel;
  int32_t dtype; /* MojoDType */
  int16_t ndim;
  int16_t flags; /* MojoTensorFlags */
} MojoTensor;

typedef void (*MojoTask)(void* context, int64_t index);
/* Runs task(context, i) for i in [0, count), on the caller and the pool's threads; returns when all are done. */
typedef void (*MojoParallelFor)(MojoTask task, void* context, int64_t count);

/* 72 bytes. The caller fills tensors and scalars, the runtime the rest at launch.
 * A queued launch copies the call with everything it points to except tensor data. */
typedef struct MojoKernelCall {
  const MojoTensor* tensors;
  int64_t n_tensors;
  const int64_t* scalars; /* int64 values, or the bits of float64 values: the kernel knows which */
  int64_t n_scalars;
  void* device_context; /* GPU: the AsyncRT DeviceContext of the stream; CPU: NULL */
  MojoParallelFor parallel_for;
  int64_t threads; /* threads that parallel_for can use, the caller included; 1 on GPUs */
  char* error;     /* where a failing kernel writes its message, NUL-terminated */
  int64_t error_capacity;
} MojoKernelCall;

typedef int32_t (*MojoKernel)(MojoKernelCall* call);

#ifdef __cplusplus
}
#endif
