// The CUDA backend behind one C function for the benchmark, which calls it from Python by ctypes: tensors as PyTorch
// lays them out, [batch, heads, length, dim], contiguous.
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/arena.h"
#include "cuda/api/backend.h"
#include "engine/records.h"

namespace {

using namespace rootdk;

thread_local std::string last_error;

Tensor on_device(void* data, DType dtype, const Extents& shape) {
  Tensor t{data, dtype, Device::kCuda, shape, row_major(shape)};
  return t;
}

}  // namespace

extern "C" {

struct Call {
  std::int64_t batch, heads_q, heads_kv, len_q, len_kv, dim;
  std::int32_t dtype;  // rootdk::DType
  std::int32_t causal;
  std::int32_t stats;   // rootdk::StatsLevel
  std::int32_t sample;  // full statistics from one in so many blocks
  float soft_cap;       // 0: off
  std::int32_t causes;
  std::int64_t key_length;  // of each item; 0: all of len_kv
};

const char* bench_error() { return last_error.c_str(); }

/// A plan, and the arrays that its problem points to.
struct Made {
  Plan plan;
  std::vector<std::int64_t> key_lengths;
};

static void make(Made& made, const Call& c, Pass pass) {
  Plan& plan = made.plan;
  if (c.key_length > 0) made.key_lengths.assign(static_cast<std::size_t>(c.batch), c.key_length);
  plan.problem.mask.key_lengths = made.key_lengths;
  plan.pass = pass;
  plan.shape = {c.batch, c.heads_q, c.heads_kv, c.len_q, c.len_kv, c.dim, c.dim, static_cast<DType>(c.dtype)};
  plan.problem.mask.causal = c.causal != 0;
  plan.problem.stats = static_cast<StatsLevel>(c.stats);
  plan.problem.stats_options.sample = c.sample;
  plan.problem.stats_options.causes = c.causes != 0;
  if (c.soft_cap > 0) plan.problem.soft_cap = c.soft_cap;
  plan.kernel =
      rootdk_cuda_backend()->choose(plan.problem, plan.shape, pass, rootdk_cuda_backend()->current_card()).kernel;
}

// A plan, which lasts as long as the process; null on an error.
const void* bench_plan(const Call* c, int backward, std::int64_t* bytes, char* kernel, int capacity) {
  try {
    Made& made = *new Made;
    make(made, *c, backward ? Pass::kBackward : Pass::kForward);
    const Plan& plan = made.plan;
    std::strncpy(kernel, plan.kernel.c_str(), static_cast<std::size_t>(capacity - 1));
    *bytes = static_cast<std::int64_t>(
        engine::records_bytes(plan) +
        (backward ? rootdk_cuda_backend()->backward_bytes(plan) : rootdk_cuda_backend()->forward_bytes(plan)));
    return &plan;
  } catch (const std::exception& e) {
    last_error = e.what();
    return nullptr;
  }
}

int bench_forward(const void* made, void* q, void* k, void* v, void* o, void* lse, void* workspace, void* stream) {
  try {
    const Plan& plan = *static_cast<const Plan*>(made);
    const Shape& s = plan.shape;
    base::Arena arena(static_cast<std::byte*>(workspace));
    const engine::ForwardRecords records = engine::ForwardRecords::take(arena, plan);
    const Extents queries = {s.batch, s.heads_q, s.len_q, s.dim_qk}, keys = {s.batch, s.heads_kv, s.len_kv, s.dim_qk};
    const Inputs in{on_device(q, s.dtype, queries), on_device(k, s.dtype, keys), on_device(v, s.dtype, keys)};
    Outputs out;
    out.o = on_device(o, s.dtype, queries);
    out.lse = on_device(lse, DType::kF32, {s.batch, s.heads_q, s.len_q, 1});
    rootdk_cuda_backend()->forward({plan, in, out, records.rows, records.full, records.causes, records.gaps,
                                    static_cast<std::byte*>(workspace) + arena.used()},
                                   stream);
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return 1;
  }
}

int bench_backward(const void* made, void* q, void* k, void* v, void* o, void* lse, void* d_o, void* d_q, void* d_k,
                   void* d_v, void* workspace, void* stream) {
  try {
    const Plan& plan = *static_cast<const Plan*>(made);
    const Shape& s = plan.shape;
    const Extents queries = {s.batch, s.heads_q, s.len_q, s.dim_qk}, keys = {s.batch, s.heads_kv, s.len_kv, s.dim_qk};
    const BackwardInputs in{on_device(q, s.dtype, queries),
                            on_device(k, s.dtype, keys),
                            on_device(v, s.dtype, keys),
                            on_device(o, s.dtype, queries),
                            on_device(lse, DType::kF32, {s.batch, s.heads_q, s.len_q, 1}),
                            on_device(d_o, s.dtype, queries)};
    Gradients out;
    out.d_q = on_device(d_q, s.dtype, queries), out.d_k = on_device(d_k, s.dtype, keys),
    out.d_v = on_device(d_v, s.dtype, keys);
    rootdk_cuda_backend()->backward({plan, in, out, nullptr, static_cast<std::byte*>(workspace)}, stream);
    return 0;
  } catch (const std::exception& e) {
    last_error = e.what();
    return 1;
  }
}

}  // extern "C"
