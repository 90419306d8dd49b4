// Tiles, splits and threads from sizes alone, the bytes of workspace, and explain()'s sentences.
#include "rootdk/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/arena.h"
#include "base/validate.h"
#include "base/visibility.h"
#include "cpu/lanes.h"
#include "cuda/api/backend.h"
#include "engine/kernel_table.h"
#include "engine/records.h"
#include "engine/slow.h"

namespace rootdk {

namespace {

// With few queries there is little to share a key block among, and too few tasks: cut the keys instead. Lengths alone
// decide, never threads, batch or heads, so that a row has the same bits in any company.
constexpr std::int64_t kShortQueries = 64;
constexpr std::int64_t kKeysPerSplit = 1536;

// Rows that share a key block: enough to amortise its way through the cache, few enough for their state to stay in L2.
constexpr std::int64_t kRowsPerTask = 256;
constexpr std::int64_t kTaskBytes = 512 * 1024;

// Tasks per thread below which runs of rows are made shorter.
constexpr std::int64_t kTasksPerThread = 4;

// Multiply-adds that are worth waking a thread for: some microseconds of work.
constexpr std::int64_t kWorkPerThread = std::int64_t{1} << 15;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int useful_threads(const Shape& s, int threads) {
  // In double: the product of sizes may pass int64, and only its order of magnitude matters.
  const double work = static_cast<double>(s.batch * s.heads_q) * static_cast<double>(s.len_q) *
                      static_cast<double>(s.len_kv) * static_cast<double>(s.dim_qk + s.dim_v);
  return static_cast<int>(std::clamp(work / static_cast<double>(kWorkPerThread), 1.0, static_cast<double>(threads)));
}

// With at most so many queries, and no more than lanes, tiles are narrow; as many rows share one.
constexpr std::int64_t kNarrowRows = 8;

// Whether a row's sums run along lanes must not depend on who shares the tile, so the group does not count here.
// Backward follows forward, so that it finds the scores that lse was made of.
bool is_narrow(const Shape& s, const engine::Kernel& kernel) {
  return kernel.lanes > 1 && s.len_q <= std::min(kNarrowRows, kernel.lanes) && s.dim_qk % kernel.lanes == 0 &&
         s.dim_v % kernel.lanes == 0;
}

void plan_forward(Plan& plan, const engine::Kernel& kernel) {
  const Shape& s = plan.shape;
  plan.pack_group = s.group() > 1 && s.len_q < kShortQueries;
  plan.narrow = is_narrow(s, kernel);
  if (plan.narrow) {  // one vector of rows in place of several, and more keys instead: long streams from memory
    plan.tile_rows = std::min(kNarrowRows, kernel.lanes);
    plan.tile_keys *= 2 * kernel.tile_rows / kernel.lanes;
  }
  if (s.len_q <= kShortQueries && s.len_kv >= 2 * kKeysPerSplit) plan.key_splits = divide_up(s.len_kv, kKeysPerSplit);
  const std::int64_t row_bytes = (s.dim_qk + s.dim_v) * 4;
  const std::int64_t rows = plan.pack_group ? s.group() * s.len_q : s.len_q;
  const std::int64_t most = std::min(std::max(kTaskBytes / row_bytes, plan.tile_rows), kRowsPerTask);
  plan.rows_per_task =
      std::min(most / plan.tile_rows, std::max<std::int64_t>(1, divide_up(rows, plan.tile_rows))) * plan.tile_rows;
  const std::int64_t groups = cpu::row_group_count(plan) * plan.key_splits;
  while (plan.rows_per_task > plan.tile_rows &&
         groups * divide_up(rows, plan.rows_per_task) < kTasksPerThread * plan.threads)
    plan.rows_per_task -= plan.tile_rows;
}

void plan_backward(Plan& plan, const engine::Kernel& kernel) {
  const Shape& s = plan.shape;
  plan.narrow = is_narrow(s, kernel);
  plan.rows_per_task = plan.tile_rows;
  // One sweep costs five products per key head, two sweeps cost seven but divide finely: take the sooner end.
  const std::int64_t units = s.batch * s.heads_kv, threads = plan.threads;
  plan.two_sweeps = units > 0 && 5 * divide_up(units, threads) * threads > 7 * units;
}

struct BlockCount {
  std::int64_t visited = 0, total = 0;
};

// Key blocks that some row of a tile can see, over all of them.
BlockCount count_blocks(const Plan& plan) {
  BlockCount count;
  const Shape& s = plan.shape;
  const std::int64_t blocks = divide_up(s.len_kv, plan.tile_keys);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t first = 0; first < s.len_q; first += plan.tile_rows) {
      std::int64_t begin = s.len_kv, end = 0;
      for (std::int64_t i = first; i < std::min(first + plan.tile_rows, s.len_q); ++i) {
        const base::KeyRange range = base::visible_keys(plan.problem.mask, s, b, i);
        if (range.empty()) continue;
        begin = std::min(begin, range.begin);
        end = std::max(end, range.end);
      }
      count.total += blocks;
      if (begin < end) count.visited += divide_up(end, plan.tile_keys) - begin / plan.tile_keys;
    }
  return count;
}

std::string features(const Problem& p) {
  std::string text;
  const auto mention = [&text](bool present, const std::string& what) {
    if (present) text += (text.empty() ? "" : ", ") + what;
  };
  mention(p.soft_cap.has_value(), fmt::format("soft-cap {:g}", p.soft_cap.value_or(0)));
  mention(p.transform.present(), "a transform of your own");
  mention(p.mask.bias.present(), "bias");
  mention(!p.mask.alibi_slopes.empty(), "ALiBi");
  mention(p.mask.causal, "causal");
  mention(p.mask.window.has_value(), "window");
  for (const base::PerItem& field : base::kPerItem) mention(field.in(p.mask), field.words);
  mention(p.mask.documents.has_value(), "documents");
  mention(p.mask.allowed.present(), "boolean mask");
  mention(!p.sink.empty(), "sink");
  mention(p.dropout.p > 0, fmt::format("dropout {:g}", p.dropout.p));
  mention(p.paged.has_value(), "paged K and V");
  return text.empty() ? "no mask or transform" : text;
}

std::string statistics(const Problem& p) {
  const StatsOptions& options = p.stats_options;
  if (p.stats == StatsLevel::kNone) return "statistics: none\n";
  std::string text = p.stats == StatsLevel::kBasic ? "statistics: basic" : "statistics: full";
  if (p.stats == StatsLevel::kFull && options.sample > 1)
    text += fmt::format(", from 1 in {} blocks of {} queries", options.sample, kSampleBlock);
  if (p.stats == StatsLevel::kFull && options.causes) text += "; Q and K are read once more for their sizes";
  if (options.gaps || options.key_mass)
    text += fmt::format("; a second pass over the scores for {}", options.gaps && options.key_mass ? "gaps and key mass"
                                                                  : options.gaps                   ? "gaps"
                                                                                                   : "key mass");
  return text + "\n";
}

// On a GPU: the backend knows its kernels.
Plan plan_for_gpu(Plan plan, const Gpu& card) {
  const cuda::Loaded& loaded = cuda::load_backend();
  if (!loaded.backend) throw Error(ErrorCode::kInvalidArgument, "machine.gpu: " + loaded.why_not);
  if (const std::string why = loaded.backend->refusal(plan.problem, plan.shape); !why.empty())
    throw Error(ErrorCode::kInvalidArgument, why);
  const cuda::Choice choice = loaded.backend->choose(plan.problem, plan.shape, plan.pass, card);
  plan.device = Device::kCuda;
  plan.kernel = choice.kernel;
  plan.isa = fmt::format("{}, sm_{}{}", card.name, card.major, card.minor);
  plan.passed_over = choice.passed_over;
  plan.workspace_bytes =
      engine::records_bytes(plan) +
      (plan.pass == Pass::kForward ? loaded.backend->forward_bytes(plan) : loaded.backend->backward_bytes(plan));
  plan.workspace_bytes += engine::block_bytes(plan);
  return plan;
}

}  // namespace

Plan make_plan(const Problem& problem, const Shape& shape, Pass pass, const Machine& machine) {
  base::check_problem(problem, shape, machine.gpu ? Device::kCuda : Device::kCpu);
  if (machine.threads < 1)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("machine.threads: {}, but at least 1 is wanted", machine.threads));
  Plan plan;
  plan.pass = pass;
  plan.problem = problem;
  plan.shape = shape;
  if (machine.gpu) return plan_for_gpu(std::move(plan), *machine.gpu);
  plan.threads = useful_threads(shape, machine.threads);
  for (const engine::Kernel& kernel : engine::kernel_table()) {
    if (const std::string why = engine::misfit(kernel, shape, machine); !why.empty()) {
      plan.passed_over.push_back(kernel.label() + ": " + why);
      continue;
    }
    plan.kernel = kernel.name;
    plan.isa = kernel.isa;
    plan.tile_rows = kernel.tile_rows;
    plan.tile_keys = kernel.tile_keys;
    if (pass == Pass::kForward) {
      plan_forward(plan, kernel);
      plan.workspace_bytes = engine::records_bytes(plan) + kernel.forward_bytes(plan);
    } else {
      plan_backward(plan, kernel);
      plan.workspace_bytes = engine::records_bytes(plan) + kernel.backward_bytes(plan);
    }
    break;
  }
  return plan;
}

std::string Plan::explain() const {
  const Shape& s = shape;
  std::string text = engine::why_slow(*this);
  if (!text.empty()) text += '\n';
  text += fmt::format("{} in {}: batch {}, {} query heads on {} key heads, {} queries x {} keys, dims {} and {}\n"
                      "scale {}; {}\n",
                      pass == Pass::kForward ? "forward" : "backward", name_of(s.dtype), s.batch, s.heads_q, s.heads_kv,
                      s.len_q, s.len_kv, s.dim_qk, s.dim_v, problem.scale.describe(), features(problem));
  if (device == Device::kCuda) {
    text += fmt::format("kernel: {} on {}{}\n", kernel, isa,
                        kernel == "hopper" ? "; tensors whose strides the copy engine cannot take go to the mma kernel"
                        : kernel == "mma"  ? ""
                                           : " (no tensor cores; slow)");
  } else if (kernel == "reference") {
    text += fmt::format("kernel: reference (double, a row at a time; slow), up to {} threads\n", threads);
  } else {
    text += fmt::format("kernel: fused, {}; tiles of {} query rows x {} keys; up to {} threads\n", isa, tile_rows,
                        tile_keys, threads);
    if (pass == Pass::kForward) {
      text += fmt::format("schedule: {} rows a task{}{}{}\n", rows_per_task,
                          narrow ? "; few rows, so vectors lie along d" : "",
                          pack_group ? "; heads that share keys lie side by side in a tile" : "",
                          key_splits > 1 ? fmt::format("; keys in {} parts, merged in order", key_splits) : "");
    } else {
      text += two_sweeps
                  ? "schedule: two sweeps, over key blocks (dK, dV) and query tiles (dQ): more tasks for the threads\n"
                  : "schedule: one sweep, a key head a task\n";
    }
    const BlockCount blocks = count_blocks(*this);
    if (blocks.visited < blocks.total)
      text +=
          fmt::format("skipped: {:.1f} % of the key blocks, which no query of a tile can see\n",
                      100.0 * static_cast<double>(blocks.total - blocks.visited) / static_cast<double>(blocks.total));
  }
  if (pass == Pass::kForward) text += statistics(problem);
  text += fmt::format("workspace: {} bytes\n", workspace_bytes);
  for (const std::string& other : passed_over) text += fmt::format("passed over: {}\n", other);
  return text;
}

}  // namespace rootdk
