// The C ABI on the CPU, and what it does with statistics. c_structs.h turns the structs of C into those of C++;
// c_api_cuda.cc is for GPUs.
#include "rootdk/c.h"

#include <array>
#include <utility>

#include "base/validate.h"
#include "base/visibility.h"
#include "engine/c_structs.h"
#include "rootdk/version.h"

using namespace rootdk;
using namespace rootdk::c;
using rootdk::base::refuse;

namespace {

Plan plan_for(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass) {
  const Pass which = to_pass(pass);
  const Problem p = to_problem(problem);
  return make_plan(p, shape_of(to_inputs(inputs), p), which);
}

}  // namespace

extern "C" {

rootdk_tensor rootdk_row_major(const void* data, rootdk_dtype dtype, int64_t batch, int64_t heads, int64_t length,
                               int64_t dim) {
  rootdk_tensor t = {};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  const std::array<std::int64_t, 4> shape = {batch, heads, length, dim};
  // Sizes nobody has checked yet: where strides overflow, forward refuses the shape.
  std::uint64_t stride = 1;
  for (std::size_t axis = 4; axis-- > 0;) {
    t.shape[axis] = shape[axis];
    t.strides[axis] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[axis]);
  }
  return t;
}

void rootdk_problem_init(rootdk_problem* problem) {
  if (problem == nullptr) return;
  *problem = {};
  problem->version = kProblemVersion;
  problem->scale_rule = ROOTDK_SCALE_INV_SQRT_DK;
  problem->scale_value = 1;
  problem->window_left = ROOTDK_UNBOUNDED;
  problem->window_right = ROOTDK_UNBOUNDED;
  problem->stats = ROOTDK_STATS_BASIC;
}

int rootdk_forward(const rootdk_problem* problem, const rootdk_inputs* inputs, const rootdk_outputs* outputs,
                   void* workspace, size_t workspace_size) {
  return guarded([&] {
    const Problem p = to_problem(problem);
    const Inputs in = to_inputs(inputs);
    const rootdk_outputs& c_out = given("outputs", outputs);
    const Outputs out = to_outputs(c_out);
    const Shape shape = shape_of(in, p);
    const std::int64_t heads = shape.batch * shape.heads_q;
    check_stats_array("head_stats", c_out.head_stats, c_out.head_stats_count, heads, p.stats != StatsLevel::kNone,
                      "a level above ROOTDK_STATS_NONE");
    check_stats_array("gaps", c_out.gaps, c_out.gaps_count, heads * ROOTDK_GAP_BINS, p.stats_options.gaps,
                      "ROOTDK_STATS_GAPS");
    if (c_out.stats != nullptr && p.stats == StatsLevel::kNone)
      refuse("stats: wanted, but the problem's stats lack a level above ROOTDK_STATS_NONE");
    Stats stats;
    if (workspace == nullptr && workspace_size == 0) {
      stats = forward(p, in, out);
    } else {
      const Plan plan = make_plan(p, shape, Pass::kForward);
      stats = forward(plan, in, out, align(workspace, workspace_size, plan));
    }
    copy_stats(stats, c_out.head_stats, c_out.gaps);
    if (c_out.stats != nullptr) *c_out.stats = new_stats(std::move(stats));
  });
}

int rootdk_backward(const rootdk_problem* problem, const rootdk_backward_inputs* inputs,
                    const rootdk_gradients* gradients, void* workspace, size_t workspace_size) {
  return guarded([&] {
    const Problem p = to_problem(problem);
    const BackwardInputs in = to_backward_inputs(inputs);
    const Gradients out = to_gradients(gradients);
    const Shape shape = shape_of({in.q, in.k, in.v}, p);
    check_stats_array("head_stats", gradients->head_stats, gradients->head_stats_count, shape.batch * shape.heads_q,
                      p.stats == StatsLevel::kFull, "ROOTDK_STATS_FULL");
    GradientStats stats;
    if (workspace == nullptr && workspace_size == 0) {
      stats = backward(p, in, out);
    } else {
      const Plan plan = make_plan(p, shape, Pass::kBackward);
      stats = backward(plan, in, out, align(workspace, workspace_size, plan));
    }
    copy_gradient_stats(stats, gradients->head_stats);
  });
}

int rootdk_workspace_size(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass, size_t* size) {
  return guarded([&] {
    given("size", size);
    *size = padded(plan_for(problem, inputs, pass).workspace_bytes);
  });
}

int rootdk_explain(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass, char* buffer,
                   size_t capacity, size_t* needed) {
  return guarded([&] { copy_words(plan_for(problem, inputs, pass).explain(), buffer, capacity, needed); });
}

int rootdk_visible_keys(const rootdk_problem* problem, int64_t batch, int64_t len_q, int64_t len_kv, int64_t* ranges,
                        int64_t count) {
  return guarded([&] {
    Shape s;
    s.batch = batch, s.len_q = len_q, s.len_kv = len_kv, s.dim_qk = s.dim_v = 1;
    Problem masked;
    masked.mask = to_problem(problem).mask;
    masked.mask.allowed = masked.mask.bias = {}, masked.mask.alibi_slopes = {};
    base::check_problem(masked, s);
    if (count != 4 * batch * len_q) refuse("ranges: count is {}, but {} is wanted", count, 4 * batch * len_q);
    if (count != 0) given("ranges", ranges);
    base::write_visible_keys(base::view_of(masked.mask, s), batch, ranges);
  });
}

int rootdk_stats_read(const rootdk_stats* stats, rootdk_head_stats* heads, int64_t heads_count, int64_t* gaps,
                      int64_t gaps_count) {
  return guarded([&] {
    const Stats& s = to_stats(given("stats", stats));
    const auto count = static_cast<std::int64_t>(s.per_head.size());
    const bool has_gaps = count > 0 && !s.per_head[0].gaps.counts.empty();
    check_stats_array("heads", heads, heads_count, count, true, "");
    check_stats_array("gaps", gaps, gaps_count, count * ROOTDK_GAP_BINS, has_gaps, "ROOTDK_STATS_GAPS");
    copy_stats(s, heads, gaps);
  });
}

int rootdk_stats_shape(const rootdk_stats* stats, int64_t* batch, int64_t* heads) {
  return guarded([&] {
    const Stats& s = to_stats(given("stats", stats));
    if (batch != nullptr) *batch = s.batch;
    if (heads != nullptr) *heads = s.heads;
  });
}

int rootdk_stats_merge(const rootdk_stats* a, const rootdk_stats* b, rootdk_stats** merged) {
  return guarded([&] {
    given("merged", merged);
    *merged = new_stats(merge(to_stats(given("a", a)), to_stats(given("b", b))));
  });
}

int rootdk_stats_over_batch(const rootdk_stats* stats, rootdk_stats** merged) {
  return guarded([&] {
    given("merged", merged);
    *merged = new_stats(over_batch(to_stats(given("stats", stats))));
  });
}

int rootdk_stats_of_rows(const rootdk_outputs* outputs, rootdk_stats** stats) {
  return guarded([&] {
    given("stats", stats);
    const Outputs rows = to_outputs(given("outputs", outputs));
    *stats = new_stats(stats_of_rows(rows.rows, rows.lse));
  });
}

void rootdk_stats_free(rootdk_stats* stats) { delete reinterpret_cast<Stats*>(stats); }

int rootdk_merge(const rootdk_tensor* o, const rootdk_tensor* lse, const rootdk_tensor* other_o,
                 const rootdk_tensor* other_lse) {
  return guarded([&] {
    merge(to_tensor("o", given("o", o)), to_tensor("lse", given("lse", lse)),
          to_tensor("other_o", given("other_o", other_o)), to_tensor("other_lse", given("other_lse", other_lse)));
  });
}

const char* rootdk_version(void) { return ROOTDK_VERSION; }

}  // extern "C"
