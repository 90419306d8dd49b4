// Which tensors TMA can read, and their tensor maps, by the driver's encoder.
#include "cuda/hopper/tensor_map.h"

#include "cuda/common/launch.h"

namespace rootdk::cuda {

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver is asked for this one function, so that nothing links to it.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

}  // namespace

bool can_map(const ConstTensor& t) {
  if (t.count() == 0 || t.strides[3] != 1 || reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0) return false;
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (t.shape[axis] > 1 &&
        (t.strides[axis] <= 0 || t.strides[axis] % 8 != 0 || t.strides[axis] >= std::int64_t{1} << 38))
      return false;
  return true;
}

CUtensorMap tensor_map(const ConstTensor& t, int rows) {
  CUtensorMap map;
  cuuint64_t sizes[4], strides[3];
  for (std::size_t axis = 0; axis < 4; ++axis) sizes[axis] = static_cast<cuuint64_t>(t.shape[3 - axis]);
  for (std::size_t axis = 0; axis < 3; ++axis)
    strides[axis] =
        static_cast<cuuint64_t>(t.shape[2 - axis] == 1 ? divide_up(t.shape[3], 8) * 8 : t.strides[2 - axis]) * 2;
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  const auto encode = [&] {
    return encoder()(&map, t.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                     4, const_cast<void*>(t.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult status = encode();
  if (status == CUDA_ERROR_INVALID_CONTEXT) {  // the driver on a thread that the runtime has not worked on yet
    int device = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaSetDevice(device), "device");
    status = encode();
  }
  if (status != CUDA_SUCCESS)
    throw Error(ErrorCode::kInternal,
                "cuda: a tensor map was refused with status " + std::to_string(static_cast<int>(status)));
  return map;
}

}  // namespace rootdk::cuda
