// The sizes of queries and keys on a GPU, without one: above all that rows which are not finite do not count, wherever
// they are.
#include "cuda/statistics/causes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/arena.h"
#include "base/element.h"
#include "support/rng.h"

namespace rootdk::cuda {
namespace {

using test::Rng;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// Q and K in f32, with a pitch that leaves room between rows; DType says how they are stored.
struct Rows {
  std::int64_t heads, length, dim, pitch;
  std::vector<float> values;

  Rows(std::int64_t heads, std::int64_t length, std::int64_t dim, std::int64_t pitch)
      : heads(heads),
        length(length),
        dim(dim),
        pitch(pitch),
        values(static_cast<std::size_t>(heads * length * pitch)) {}
  float& at(std::int64_t head, std::int64_t i, std::int64_t d) {
    return values[static_cast<std::size_t>((head * length + i) * pitch + d)];
  }
  float at(std::int64_t head, std::int64_t i, std::int64_t d) const { return const_cast<Rows*>(this)->at(head, i, d); }
  void fill(std::int64_t head, std::int64_t i, float value) {
    for (std::int64_t d = 0; d < dim; ++d) at(head, i, d) = value;
  }
  std::vector<std::int64_t> finite(std::int64_t head, std::int64_t end) const {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < end; ++i) {
      bool all = true;
      for (std::int64_t d = 0; d < dim; ++d) all = all && std::isfinite(at(head, i, d));
      if (all) found.push_back(i);
    }
    return found;
  }
};

/// As a kernel reads them; rounds `rows` to what is stored.
std::vector<std::byte> store(Rows& rows, DType dtype) {
  const std::size_t size = dtype == DType::kF32 ? 4 : 2;
  std::vector<std::byte> out(rows.values.size() * size + 16);
  for (std::size_t i = 0; i < rows.values.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    base::write(dtype, out.data(), at, static_cast<double>(rows.values[i]));
    rows.values[i] = static_cast<float>(base::read(dtype, out.data(), at));
  }
  return out;
}

struct Shapes {
  std::int64_t batch, heads_q, heads_kv, len_q, len_kv, dim, pitch;
  DType dtype;
  std::vector<std::int64_t> key_lengths;
};

/// Holds the kernels against sums in double.
void check(const Shapes& s, Rows q, Rows k, const char* what) {
  std::vector<std::byte> q_data = store(q, s.dtype), k_data = store(k, s.dtype);
  Plan plan;
  plan.shape = {s.batch, s.heads_q, s.heads_kv, s.len_q, s.len_kv, s.dim, s.dim, s.dtype};
  plan.problem.stats = StatsLevel::kFull;
  base::Arena measure;
  causes_memory(plan, measure);
  std::vector<std::byte> workspace(measure.used() + 64, std::byte{0xFF});
  base::Arena arena(workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64);
  ForwardView f;
  f.p.batch = s.batch, f.p.heads_q = s.heads_q, f.p.heads_kv = s.heads_kv, f.p.group = s.heads_q / s.heads_kv;
  f.p.len_q = s.len_q, f.p.len_kv = s.len_kv, f.p.dim_qk = s.dim;
  f.p.left = f.p.right = std::int64_t{1} << 42;
  if (!s.key_lengths.empty()) f.p.key_lengths = s.key_lengths.data();
  const auto view = [&](std::vector<std::byte>& data, std::int64_t heads, std::int64_t length) {
    const ConstTensor t{data.data(),
                        s.dtype,
                        Device::kCuda,
                        {s.batch, heads, length, s.dim},
                        {heads * length * s.pitch, length * s.pitch, s.pitch, 1}};
    return View(t);
  };
  f.q = view(q_data, s.heads_q, s.len_q), f.k = view(k_data, s.heads_kv, s.len_kv);
  std::vector<Causes> causes(static_cast<std::size_t>(s.batch * s.heads_q));
  f.causes = causes.data();
  find_causes(f, causes_memory(plan, arena), s.dtype, false, nullptr);

  for (std::int64_t head = 0; head < s.batch * s.heads_q; ++head) {
    const std::int64_t b = head / s.heads_q, kv_head = b * s.heads_kv + head % s.heads_q / f.p.group;
    const std::int64_t length = s.key_lengths.empty() ? s.len_kv : s.key_lengths[static_cast<std::size_t>(b)];
    const auto queries = q.finite(head, length > 0 ? s.len_q : 0),
               keys = k.finite(kv_head, length);  // without keys, queries see nothing
    const auto dim = static_cast<double>(s.dim);
    double q_square = 0, k_variance = 0, mean_square = 0;
    for (const std::int64_t i : queries)
      for (std::int64_t d = 0; d < s.dim; ++d)
        q_square += std::pow(static_cast<double>(q.at(head, i, d)), 2) / (static_cast<double>(queries.size()) * dim);
    for (std::int64_t d = 0; d < s.dim && !keys.empty(); ++d) {
      double mean = 0;
      for (const std::int64_t j : keys)
        mean += static_cast<double>(k.at(kv_head, j, d)) / static_cast<double>(keys.size());
      for (const std::int64_t j : keys)
        k_variance +=
            std::pow(static_cast<double>(k.at(kv_head, j, d)) - mean, 2) / (static_cast<double>(keys.size()) * dim);
      mean_square += mean * mean;
    }
    // f32 adds up eight rows and four columns, as in cuda/sweep.cc.
    const Causes& found = causes[static_cast<std::size_t>(head)];
    constexpr double kBound = 64 * 0x1p-24;
    EXPECT_NEAR(found.q_square, q_square, kBound * q_square) << what << ", head " << head;
    EXPECT_NEAR(found.k_variance, k_variance, kBound * k_variance) << what << ", head " << head;
    EXPECT_NEAR(found.key_mean_square, mean_square, kBound * mean_square) << what << ", head " << head;
  }
}

TEST(Causes, LeaveOutRowsThatAreNotFinite) {
  const std::vector<Shapes> all = {
      {1, 2, 1, 700, 1100, 128, 128, DType::kBF16, {}},
      {2, 2, 2, 300, 600, 64, 64, DType::kF16, {600, 77}},
      {2, 2, 1, 70, 40, 64, 72, DType::kBF16, {0, 40}},
      {1, 2, 1, 520, 513, 65, 66, DType::kF16, {}},
      {1, 2, 2, 33, 40, 36, 40, DType::kF32, {}},
      {1, 1, 1, 90, 600, 257, 257, DType::kF32, {}},  // columns in two passes
      {1, 1, 1, 40, 70, 1028, 1028, DType::kBF16, {}},
      {1, 1, 1, 100, 1030, 1, 1, DType::kF32, {}},
  };
  for (const Shapes& s : all) {
    Rng rng(static_cast<std::uint64_t>(s.dim));
    Rows q(s.batch * s.heads_q, s.len_q, s.dim, s.pitch), k(s.batch * s.heads_kv, s.len_kv, s.dim, s.pitch);
    for (float& x : q.values) x = static_cast<float>(rng.normal());
    for (std::int64_t row = 0; row < k.heads * k.length; ++row)
      for (std::int64_t d = 0; d < s.dim; ++d)
        k.at(0, row, d) = static_cast<float>(rng.normal()) + static_cast<float>(d % 64) / 4;  // means of many sigmas
    check(s, q, k, "all is finite");

    const std::int64_t last = s.dim - 1, middle = s.len_kv / 2;
    Rows damaged_q = q, damaged_k = k;
    damaged_k.fill(0, middle, 6e4f),
        damaged_k.at(0, middle, 0) = kInf;  // what else is in such a row must not be what sums are about
    damaged_q.fill(0, s.len_q / 2, 5e4f), damaged_q.at(0, s.len_q / 2, last) = kNan;
    check(s, damaged_q, damaged_k, "the row in the middle");

    damaged_q = q, damaged_k = k;
    damaged_k.fill(0, 3, 3e4f), damaged_k.at(0, 3, last) = kNan, damaged_k.at(0, 4, 0) = kInf,
                                                   damaged_k.at(0, s.len_kv - 1, s.dim / 2) = -kInf;
    damaged_q.at(q.heads - 1, 0, last) = kInf;
    check(s, damaged_q, damaged_k, "some rows");

    damaged_q = q, damaged_k = k;
    for (const std::int64_t part : {2, 4, 8, 16})
      damaged_k.at(0, s.len_kv / part, 0) = damaged_q.at(0, s.len_q / part, last) = kNan;
    check(s, damaged_q, damaged_k, "all that sums could be about");

    damaged_k = k;
    for (std::int64_t j = 0; j < s.len_kv; ++j) damaged_k.at(0, j, last) = kNan;
    check(s, q, damaged_k, "a whole head");

    if (s.dtype == DType::kF16) continue;
    damaged_q = q, damaged_k = k;
    damaged_k.at(0, middle, last) = damaged_q.at(0, 7, 0) = 1e30f;
    check(s, damaged_q, damaged_k, "squares beyond f32");
  }
}

}  // namespace
}  // namespace rootdk::cuda
