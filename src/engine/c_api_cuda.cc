// The C ABI on a GPU: the same structs, planned for the current device, with workspace and stream given.
#include "base/refuse.h"
#include "engine/c_structs.h"
#include "rootdk/c.h"
#include "rootdk/cuda.h"

using namespace rootdk;
using namespace rootdk::c;

namespace {

Plan gpu_plan(const Problem& problem, const Inputs& inputs, Pass pass) {
  return make_plan(problem, shape_of(inputs, problem), pass, cuda::machine());
}

// Nothing has been learned yet when such a call returns.
void must_be_absent(std::string_view name, const void* pointer, std::int64_t count, std::string_view reader) {
  if (pointer != nullptr || count != 0)
    base::refuse("{}: on a GPU it cannot be filled before the call returns; {} reads it afterwards", name, reader);
}

}  // namespace

extern "C" {

const char* rootdk_cuda_missing(void) {
  guarded([] {
    if (const std::string why = cuda::missing(); !why.empty()) base::refuse("{}", why);
  });
  return rootdk_last_error();
}

int rootdk_cuda_is_fast(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass, int32_t* fast) {
  return guarded([&] {
    given("fast", fast);
    const Inputs in = to_inputs(inputs);
    *fast = cuda::is_fast(gpu_plan(to_problem(problem), in, to_pass(pass)), in);
  });
}

int rootdk_cuda_workspace_size(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass,
                               size_t* size) {
  return guarded([&] {
    given("size", size);
    *size = padded(gpu_plan(to_problem(problem), to_inputs(inputs), to_pass(pass)).workspace_bytes);
  });
}

int rootdk_cuda_explain(const rootdk_problem* problem, const rootdk_inputs* inputs, rootdk_pass pass, char* buffer,
                        size_t capacity, size_t* needed) {
  return guarded([&] {
    const Inputs in = to_inputs(inputs);
    const Plan plan = gpu_plan(to_problem(problem), in, to_pass(pass));
    std::string words = plan.explain();
    if (const std::string slow = cuda::why_slow(plan, in); !slow.empty() && !words.starts_with(slow))
      words.insert(0, slow + '\n');
    copy_words(words, buffer, capacity, needed);
  });
}

int rootdk_cuda_forward(const rootdk_problem* problem, const rootdk_inputs* inputs, const rootdk_outputs* outputs,
                        void* workspace, size_t workspace_size, void* stream) {
  return guarded([&] {
    const Problem p = to_problem(problem);
    const Inputs in = to_inputs(inputs);
    const rootdk_outputs& c_out = given("outputs", outputs);
    const Outputs out = to_outputs(c_out);
    must_be_absent("head_stats", c_out.head_stats, c_out.head_stats_count, "rootdk_cuda_read_stats");
    must_be_absent("gaps", c_out.gaps, c_out.gaps_count, "rootdk_cuda_read_stats");
    must_be_absent("stats", c_out.stats, 0, "rootdk_cuda_read_stats");
    const Plan plan = gpu_plan(p, in, Pass::kForward);
    cuda::forward(plan, in, out, align(workspace, workspace_size, plan), stream);
  });
}

int rootdk_cuda_backward(const rootdk_problem* problem, const rootdk_backward_inputs* inputs,
                         const rootdk_gradients* gradients, void* workspace, size_t workspace_size, void* stream) {
  return guarded([&] {
    const Problem p = to_problem(problem);
    const BackwardInputs in = to_backward_inputs(inputs);
    const Gradients out = to_gradients(gradients);
    must_be_absent("head_stats", gradients->head_stats, gradients->head_stats_count, "rootdk_cuda_read_gradient_stats");
    const Plan plan = gpu_plan(p, {in.q, in.k, in.v}, Pass::kBackward);
    cuda::backward(plan, in, out, align(workspace, workspace_size, plan), stream);
  });
}

int rootdk_cuda_read_stats(const rootdk_problem* problem, const rootdk_inputs* inputs, void* workspace,
                           size_t workspace_size, void* stream, rootdk_stats** stats) {
  return guarded([&] {
    given("stats", stats);
    const Plan plan = gpu_plan(to_problem(problem), to_inputs(inputs), Pass::kForward);
    *stats = new_stats(cuda::read_stats(plan, align(workspace, workspace_size, plan), stream));
  });
}

int rootdk_cuda_read_gradient_stats(const rootdk_problem* problem, const rootdk_inputs* inputs, const void* workspace,
                                    size_t workspace_size, void* stream, rootdk_head_gradients* heads,
                                    int64_t heads_count) {
  return guarded([&] {
    given("heads", heads);
    const Plan plan = gpu_plan(to_problem(problem), to_inputs(inputs), Pass::kBackward);
    check_stats_array("heads", heads, heads_count, plan.shape.batch * plan.shape.heads_q,
                      plan.problem.stats == StatsLevel::kFull, "ROOTDK_STATS_FULL");
    copy_gradient_stats(
        cuda::read_gradient_stats(plan, align(const_cast<void*>(workspace), workspace_size, plan), stream), heads);
  });
}

}  // extern "C"
