// The fused backward kernel: five products a tile, nothing of size len_q × len_kv stored. For a tile of query rows and
// a block of keys:
//
//   S = K·Qᵀ → passes → P = e^{S − lse};  dP = V·dOᵀ;  dS = P∘(dP − D)∘slope,  D = dO·O − dLSE
//   dV += P·dO    dK += dS·(cQ)    dQ += c·Kᵀ·dS
//
// dQ sums over ascending key blocks, dK and dV over ascending (head in group, query tile), whatever the schedule. There
// are two schedules with the same bits: one sweep (a task owns a key head: five products) and two sweeps (tasks own key
// blocks, then query tiles: seven products, but more tasks).
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/arena.h"
#include "base/call.h"
#include "base/element.h"
#include "base/parallel.h"

#if defined(ROOTDK_CPU_BACKWARD_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROOTDK_CPU_BACKWARD_BACKWARD_INL_H_
#undef ROOTDK_CPU_BACKWARD_BACKWARD_INL_H_
#else
#define ROOTDK_CPU_BACKWARD_BACKWARD_INL_H_
#endif

#include "cpu/backward/sweeps-inl.h"
#include "cpu/backward/workspace-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rootdk::cpu {
namespace HWY_NAMESPACE {

std::size_t backward_workspace_bytes(const Plan& plan) {
  base::Arena arena;
  BackwardWorkspace::take(arena, plan);
  return arena.used();
}

void backward(const base::BackwardCall& call) {
  const Plan& plan = call.plan;
  const Shape& s = plan.shape;
  base::Arena arena(call.workspace);
  const BackwardWorkspace workspace = BackwardWorkspace::take(arena, plan);
  const Backward kernel(call, workspace);
  const Wanted want = kernel.wanted();
  const std::int64_t tiles = kernel.tiles_per_head(), blocks = kernel.key_blocks();
  const auto scratch = [&](int thread) -> const BackwardScratch& { return workspace.scratch[thread]; };

  base::parallel_tasks(s.batch * s.heads_q, plan.threads,
                       [&](std::int64_t task, int) { kernel.row_deltas(task / s.heads_q, task % s.heads_q); });
  if (!plan.two_sweeps) {
    base::parallel_tasks(s.batch * s.heads_kv, plan.threads, [&](std::int64_t task, int thread) {
      kernel.sweep_kv_head(task / s.heads_kv, task % s.heads_kv, scratch(thread));
    });
  } else {
    if (want.d_k || want.d_v)
      base::parallel_tasks(s.batch * s.heads_kv * blocks, plan.threads, [&](std::int64_t task, int thread) {
        kernel.sweep_key_block(task / blocks / s.heads_kv, task / blocks % s.heads_kv, task % blocks, scratch(thread));
      });
    if (want.d_q)
      base::parallel_tasks(s.batch * s.heads_q * tiles, plan.threads, [&](std::int64_t task, int thread) {
        kernel.sweep_query_tile(task / tiles / s.heads_q, task / tiles % s.heads_q, tiles - 1 - task % tiles,
                                scratch(thread));
      });
  }
  if (call.grad.d_bias.present())
    base::parallel_tasks(kernel.bias_task_count(), plan.threads,
                         [&](std::int64_t task, int thread) { kernel.bias_task(task, scratch(thread)); });

  const auto write_scale = [&](std::span<float> out, double ScaleSums::*part) {
    for (std::int64_t h = 0; h < s.heads_q && !out.empty(); ++h) {
      double sum = 0;
      for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t t = 0; t < tiles; ++t) sum += workspace.d_scale[(b * s.heads_q + h) * tiles + t].*part;
      out[static_cast<std::size_t>(h)] = static_cast<float>(sum);
    }
  };
  for (std::int64_t index = 0; index < s.batch * s.heads_q && call.stats; ++index)
    call.stats[index] = kernel.head_gradients(index / s.heads_q, index % s.heads_q);
  write_scale(call.grad.d_scale, &ScaleSums::rule);
  write_scale(call.grad.d_log_n_gain, &ScaleSums::log_n_gain);
  write_scale(call.grad.d_log_n_offset, &ScaleSums::log_n_offset);
  for (std::int64_t h = 0; h < s.heads_q && !call.grad.d_sink.empty(); ++h) {
    double sum = 0;  // dz = −Σ p_sink·D
    const double z = static_cast<double>(plan.problem.sink[static_cast<std::size_t>(h)]);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t i = 0; i < s.len_q; ++i)
        sum -= std::exp(z - base::read(call.in.lse, b, h, i, 0)) *
               static_cast<double>(workspace.delta[(b * s.heads_q + h) * s.len_q + i]);
    call.grad.d_sink[static_cast<std::size_t>(h)] = static_cast<float>(sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rootdk::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
