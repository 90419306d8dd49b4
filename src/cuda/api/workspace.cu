// The problem's arrays on their way into the workspace.
#include "cuda/api/workspace.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/dropout.h"
#include "cuda/common/launch.h"

namespace rootdk::cuda {

namespace {

constexpr std::size_t kWords = 224;  ///< of 16 bytes: kernel arguments end at 4 KB

struct Chunk {
  uint4 words[kWords];
};

__global__ void write_chunk(uint4* to, const __grid_constant__ Chunk chunk, unsigned words) {
  if (threadIdx.x < words) to[threadIdx.x] = chunk.words[threadIdx.x];
}

std::vector<double> one_per_head(std::span<const float> values, double otherwise, std::int64_t heads) {
  std::vector<double> out(static_cast<std::size_t>(heads), otherwise);
  std::copy(values.begin(), values.end(), out.begin());
  return out;
}

}  // namespace

Staged stage(const Plan& plan, std::int64_t page_size, base::Arena& arena) {
  const Problem& problem = plan.problem;
  const Shape& s = plan.shape;
  const Mask& mask = problem.mask;
  Staged out;
  ProblemView& p = out.view;
  Arrays& arrays = out.arrays;
  static_cast<base::MaskView&>(p) = base::view_of(mask, s);
  p.batch = s.batch, p.heads_q = s.heads_q, p.heads_kv = s.heads_kv, p.group = std::max<std::int64_t>(1, s.group());
  p.dim_qk = s.dim_qk, p.dim_v = s.dim_v;

  std::vector<double> factors;
  for (std::int64_t h = 0; h < s.heads_q; ++h) factors.push_back(problem.scale.factor(h, s.dim_qk));
  Arrays::Slot<double> factor;
  if (!factors.empty()) p.factor_of_all = factors[0];
  if (std::any_of(factors.begin(), factors.end(), [&](double x) { return x != factors[0]; }))
    factor = arrays.add(factors.data(), factors.size());
  Arrays::Slot<double> gain, offset;
  if (problem.scale.length == Scale::Length::kLogN) {
    const std::vector<double> gains = one_per_head(problem.scale.head_gains, problem.scale.log_n_gain, s.heads_q);
    const std::vector<double> offsets = one_per_head(problem.scale.head_offsets, problem.scale.log_n_offset, s.heads_q);
    gain = arrays.add(gains.data(), gains.size()), offset = arrays.add(offsets.data(), offsets.size());
  }
  p.yarn = Scale::none().factor(0, 1);
  if (problem.scale.yarn != 1) p.yarn = Scale::none().with_yarn(problem.scale.yarn).factor(0, 1);
  p.length = problem.scale.length;
  p.cap = problem.soft_cap.value_or(0);

  std::array<Arrays::Slot<std::int64_t>, std::size(base::kPerItem)> per_item;
  std::transform(std::begin(base::kPerItem), std::end(base::kPerItem), per_item.begin(),
                 [&](const auto& field) { return arrays.add(field.of(mask).data(), field.of(mask).size()); });
  Arrays::Slot<std::int64_t> q_starts, kv_starts;
  if (mask.documents) {
    q_starts = arrays.add(mask.documents->q_starts.data(), mask.documents->q_starts.size());
    kv_starts = arrays.add(mask.documents->kv_starts.data(), mask.documents->kv_starts.size());
  }
  const auto slopes = arrays.add(mask.alibi_slopes.data(), mask.alibi_slopes.size());
  const auto sink = arrays.add(problem.sink.data(), problem.sink.size());
  if (mask.allowed.present()) p.allowed = View(mask.allowed);
  if (mask.bias.present()) p.bias = View(mask.bias);

  p.dropout = problem.dropout.p > 0;
  p.keep_threshold = base::keep_threshold(problem.dropout);
  p.keep_gain = static_cast<float>(base::keep_gain(problem.dropout));
  p.seed_low = static_cast<std::uint32_t>(problem.dropout.seed),
  p.seed_high = static_cast<std::uint32_t>(problem.dropout.seed >> 32);
  p.seed = problem.dropout.device_seed;

  Arrays::Slot<std::int32_t> pages;
  if (problem.paged) {
    pages = arrays.add(problem.paged->table.data(), problem.paged->table.size());
    p.pages_per_item = problem.paged->pages_per_item;
    p.page_size = page_size;
  }
  p.sample = problem.stats_options.sample, p.sample_offset = problem.stats_options.sample_offset;
  p.first_query = problem.stats_options.first_query;

  out.base = arena.take<std::byte>(static_cast<std::int64_t>(arrays.bytes().size()));
  p.factor = Arrays::at(out.base, factor);
  p.log_n_gain = Arrays::at(out.base, gain), p.log_n_offset = Arrays::at(out.base, offset);
  for (std::size_t i = 0; i < per_item.size(); ++i) p.*base::kPerItem[i].view = Arrays::at(out.base, per_item[i]);
  p.q_starts = Arrays::at(out.base, q_starts), p.kv_starts = Arrays::at(out.base, kv_starts);
  p.slopes = Arrays::at(out.base, slopes), p.sink = Arrays::at(out.base, sink);
  p.pages = Arrays::at(out.base, pages);
  return out;
}

void upload(const Staged& staged, void* stream) {
  const std::vector<std::byte>& bytes = staged.arrays.bytes();
  const std::size_t words = bytes.size() / sizeof(uint4);
  for (std::size_t first = 0; first < words; first += kWords) {
    const std::size_t count = std::min(kWords, words - first);
    Chunk chunk = {};
    std::memcpy(chunk.words, bytes.data() + first * sizeof(uint4), count * sizeof(uint4));
    launch_kernel("upload", write_chunk, 1, kWords, 0, static_cast<cudaStream_t>(stream),
                  reinterpret_cast<uint4*>(staged.base) + first, chunk, static_cast<unsigned>(count));
  }
}

}  // namespace rootdk::cuda
