// The operators' kernels for the CPU, over torch's stable ABI: one library for every torch from 2.10 on. Their schemas,
// and what stands around them (shapes for compilers, autograd, autocast, vmap), are in python/rootdk/_operator.py.
#include <torch/csrc/stable/library.h>

#include <cmath>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "attend.h"
#include "base/refuse.h"
#include "rootdk/error.h"

namespace rootdk::torch_operators {

namespace {

/// What torch turns into a MemoryError with these words.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Errors as torch hands them to Python: ValueError for what is wrong with an argument.
template <class Run>
auto for_python(const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory) throw OutOfMemory(error.what());
    if (error.code() == ErrorCode::kInternal) throw;
    throw std::invalid_argument(error.what());
  }
}

std::int64_t heads_of(const TorchTensor& q) { return q.dim() > 1 ? q.size(1) : 0; }

std::tuple<TorchTensor, TorchTensor> fused(const TorchTensor& q, const TorchTensor& k, const TorchTensor& v,
                                           const MaybeTensor& scale, const MaybeTensor& mask, const MaybeTensor& bias,
                                           const MaybeTensor& sink, const MaybeTensor& seed, const Numbers& numbers,
                                           const Reals& reals) {
  return for_python([&] {
    const Described described({scale, mask, bias, sink, seed}, numbers, reals, heads_of(q));
    Attended done = attend({q, k, v}, described.problem, true);
    return std::tuple{std::move(done.out), std::move(*done.lse)};
  });
}

std::vector<TorchTensor> fused_backward(const TorchTensor& d_out, const MaybeTensor& d_lse, const TorchTensor& out,
                                        const TorchTensor& lse, const TorchTensor& q, const TorchTensor& k,
                                        const TorchTensor& v, const MaybeTensor& scale, const MaybeTensor& mask,
                                        const MaybeTensor& bias, const MaybeTensor& sink, const MaybeTensor& seed,
                                        const Numbers& numbers, const Reals& reals, std::int64_t wanted) {
  return for_python([&] {
    const Described described({scale, mask, bias, sink, seed}, numbers, reals, heads_of(q));
    return attend_backward({d_out, d_lse, out, lse}, {q, k, v}, described.problem, wanted);
  });
}

}  // namespace

}  // namespace rootdk::torch_operators

STABLE_TORCH_LIBRARY_IMPL(rootdk, CPU, library) {
  using namespace rootdk::torch_operators;
  library.impl("fused", TORCH_BOX(&fused));
  library.impl("fused_backward", TORCH_BOX(&fused_backward));
}
