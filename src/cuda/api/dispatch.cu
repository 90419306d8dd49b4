// From a checked call to kernels.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/arena.h"
#include "base/row_tensors.h"
#include "cuda/api/backend.h"
#include "cuda/api/workspace.h"
#include "cuda/common/launch.h"
#include "cuda/hopper/hopper.h"
#include "cuda/mma/mma.h"
#include "cuda/plain/plain.h"
#include "cuda/statistics/causes.h"
#include "cuda/statistics/row_blocks.h"

namespace rootdk::cuda {

namespace {

std::int64_t page_size(const Plan& plan, const ConstTensor& k) { return plan.problem.paged ? k.shape[2] : 0; }

/// The workspace of a forward call.
struct ForwardMemory {
  Staged staged;
  CausesMemory causes;

  ForwardMemory(const Plan& plan, std::int64_t size_of_page, base::Arena& arena)
      : staged(stage(plan, size_of_page, arena)), causes(causes_memory(plan, arena)) {}
};

struct BackwardMemory {
  Staged staged;
  float* delta;
  RowSums* rows;
  double *key_squares, *head_sums;

  BackwardMemory(const Plan& plan, std::int64_t size_of_page, base::Arena& arena)
      : staged(stage(plan, size_of_page, arena)) {
    const Shape& s = plan.shape;
    const std::int64_t queries = s.batch * s.heads_q * s.len_q;
    delta = arena.take<float>(queries);
    rows = arena.take<RowSums>(queries);
    key_squares = arena.take<double>(2 * s.batch * s.heads_kv * s.len_kv);
    head_sums = arena.take<double>(4 * s.batch * s.heads_q);
  }
};

ForwardView view_of(const base::ForwardCall& call, const ForwardMemory& memory) {
  ForwardView f;
  f.p = memory.staged.view;
  f.q = View(call.in.q), f.k = View(call.in.k), f.v = View(call.in.v), f.o = View(call.out.o);
  f.lse = View(call.out.lse);
  f.raw_max = View(call.out.rows.raw_max), f.score_max = View(call.out.rows.score_max),
  f.p_max = View(call.out.rows.p_max);
#define ROOTDK_FULL_ROW(merges, name, value, doc) f.full_rows.name = View(call.out.rows.name);
#include "rootdk/statistics.def"
  f.key_mass = View(call.out.key_mass);
  f.records = call.records, f.full = call.full, f.causes = call.causes, f.gaps = call.gaps;
  return f;
}

// Every call asks, and a card's properties take longer to get than a kernel takes to launch.
Gpu current_card() {
  static PerDevice<Gpu> known;
  return known.get([] {
    int device = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&properties, device), "device properties");
    return Gpu{properties.name, properties.major, properties.minor, properties.multiProcessorCount};
  });
}

std::string missing() {
  static std::atomic<bool> counted{false};  // devices do not go away, and every call asks
  if (!counted) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) {
      cudaGetLastError();
      return std::string("no usable CUDA driver or device: ") + cudaGetErrorString(status);
    }
    if (count == 0) return "no CUDA device";
    counted = true;
  }
  const Gpu card = current_card();
  if (card.major < 8)
    return card.name + " has compute capability " + std::to_string(card.major) + "." + std::to_string(card.minor) +
           ", but 8.0 is wanted";
  return {};
}

std::string refusal(const Problem& problem, const Shape& shape) {
  if (shape.dtype == DType::kF64) return "q: dtype is f64, but on a GPU f32, f16 or bf16 is wanted";
  if (problem.transform.present()) return "transform: a function on the host, which a GPU cannot call";
  return {};
}

/// Why a kernel cannot take a problem; empty if it can.
std::string misfit(std::string_view kernel, const Problem& problem, const Shape& shape, Pass pass, const Gpu& card) {
  const bool forward = pass == Pass::kForward;
  if (kernel == "hopper")
    return forward ? hopper_misfit(problem, shape, card) : hopper_backward_misfit(problem, shape, card);
  if (kernel == "mma") return forward ? mma_misfit(problem, shape) : mma_backward_misfit(problem, shape);
  return {};
}

/// The first that fits, or what ROOTDK_KERNEL names, if that fits.
Choice choose(const Problem& problem, const Shape& shape, Pass pass, const Gpu& card) {
  const char* wanted = std::getenv("ROOTDK_KERNEL");
  constexpr const char* kKernels[] = {"hopper", "mma", "plain"};
  const bool forced = std::any_of(std::begin(kKernels), std::end(kKernels), [&](const char* kernel) {
    return wanted && std::string_view(kernel) == wanted && misfit(kernel, problem, shape, pass, card).empty();
  });
  Choice choice;
  for (const char* kernel : kKernels) {
    std::string why = misfit(kernel, problem, shape, pass, card);
    if (why.empty() && forced && std::string_view(kernel) != wanted)
      why = std::string("is left out, since ROOTDK_KERNEL is ") + wanted;
    if (why.empty()) {
      choice.kernel = kernel;
      break;
    }
    choice.passed_over.push_back(std::string(kernel) + ": " + why);
  }
  return choice;
}

std::size_t forward_bytes(const Plan& plan) {
  base::Arena arena;
  ForwardMemory(plan, 1, arena);
  base::Arena hopper = arena, mma = arena;  // a call planned for one may be taken by the other
  if (plan.kernel == "hopper") hopper_memory(plan, hopper);
  if (plan.kernel != "plain") mma_memory(plan, mma);
  return std::max(hopper.used(), mma.used());
}

std::size_t backward_bytes(const Plan& plan) {
  base::Arena arena;
  BackwardMemory(plan, 1, arena);
  base::Arena hopper = arena, mma = arena;
  if (plan.kernel == "hopper") hopper_backward_memory(plan, hopper);
  if (plan.kernel != "plain") mma_backward_memory(plan, mma);
  return std::max(hopper.used(), mma.used());
}

void forward(const base::ForwardCall& call, void* stream) {
  base::Arena arena(call.workspace);
  const ForwardMemory memory(call.plan, page_size(call.plan, call.in.k), arena);
  const ForwardView view = view_of(call, memory);
  upload(memory.staged, stream);
  const auto to = static_cast<cudaStream_t>(stream);
  const bool hopper = call.plan.kernel == "hopper" && hopper_takes(call.in);
  if (hopper) hopper_forward(view, call, hopper_memory(call.plan, arena), to);
  else if (call.plan.kernel != "plain") mma_forward(view, call, mma_memory(call.plan, arena), to);
  else plain_forward(view, call.plan.shape.dtype, to);
  if (call.records) second_pass(view, call.plan.shape.dtype, to);
  if (call.causes) find_causes(view, memory.causes, call.plan.shape.dtype, hopper, to);
}

void backward(const base::BackwardCall& call, void* stream) {
  base::Arena arena(call.workspace);
  const BackwardMemory memory(call.plan, page_size(call.plan, call.in.k), arena);
  const BackwardInputs& in = call.in;
  const Gradients& grad = call.grad;
  BackwardView f;
  f.p = memory.staged.view;
  f.q = View(in.q), f.k = View(in.k), f.v = View(in.v), f.o = View(in.o), f.lse = View(in.lse), f.d_o = View(in.d_o),
  f.d_lse = View(in.d_lse);
  f.d_q = View(grad.d_q), f.d_k = View(grad.d_k), f.d_v = View(grad.d_v), f.d_bias = View(grad.d_bias);
  for (std::size_t axis = 0; axis < 4; ++axis) f.bias_shape[axis] = grad.d_bias.shape[axis];
  const auto data = [](std::span<float> sums) { return sums.empty() ? nullptr : sums.data(); };
  f.d_scale = data(grad.d_scale), f.d_sink = data(grad.d_sink), f.d_log_n_gain = data(grad.d_log_n_gain),
  f.d_log_n_offset = data(grad.d_log_n_offset);
  f.stats = call.stats;
  f.delta = memory.delta, f.rows = memory.rows, f.key_squares = memory.key_squares, f.head_sums = memory.head_sums;
  upload(memory.staged, stream);
  const auto to = static_cast<cudaStream_t>(stream);
  const bool fast = call.plan.kernel == "hopper" && hopper_backward_takes(in);
  if (fast) hopper_backward(f, call, hopper_backward_memory(call.plan, arena), to);
  else if (call.plan.kernel != "plain") mma_backward(f, call, mma_backward_memory(call.plan, arena), to);
  else plain_backward(f, call.plan.shape.dtype, to);
}

void to_host(std::span<const Copy> copies, void* stream) {
  for (const Copy& copy : copies)
    check(cudaMemcpy2DAsync(copy.to, copy.pitch, copy.from, copy.pitch, copy.width, copy.height, cudaMemcpyDeviceToHost,
                            static_cast<cudaStream_t>(stream)),
          "copy");
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for the stream");
}

}  // namespace

}  // namespace rootdk::cuda

extern "C" const rootdk::cuda::Backend* rootdk_cuda_backend() {
  using namespace rootdk::cuda;
  static const Backend table{.missing = &missing,
                             .current_card = &current_card,
                             .choose = &choose,
                             .refusal = &refusal,
                             .forward_bytes = &forward_bytes,
                             .backward_bytes = &backward_bytes,
                             .forward = &forward,
                             .backward = &backward,
                             .summarise = &summarise,
                             .to_host = &to_host};
  return &table;
}
