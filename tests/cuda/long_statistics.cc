// Numbered problems of long rows whose statistics are known by formula, run and compared.
#include "cuda/long_statistics.h"

#include <mutex>
#include <semaphore>

#include "cuda/run_on_device.h"
#include "support/long_rows.h"

namespace rootdk::test {

namespace {

enum class Seen { kAll, kCausal, kKeyLength, kSampled };

struct LongProblem {
  LongRows kind;
  Shape shape;
  Seen seen = Seen::kAll;
  std::string kernel;
};

/// Every pattern in every dim and length on Hopper, dtypes and masks in turn; on the other kernels every pattern and
/// length, on mma dims in turn. Rows fill all warpgroups of a tile but for a few, so that there is padding, too.
LongProblem problem_of(int number) {
  constexpr std::int64_t kKeys[] = {32768 + 13, 131072 - 5, 1 << 20};
  constexpr int kKinds = static_cast<int>(LongRows::kCount);
  const bool hopper = number < kLongOnHopper, mma = number >= kLongOnHopper + kLongOnPlain;
  if (!hopper) number -= mma ? kLongOnHopper + kLongOnPlain : kLongOnHopper;
  const int kind = number % kKinds, length = hopper ? number / kKinds / 3 : number / kKinds,
            dim = hopper ? number / kKinds % 3
                  : mma  ? (kind + length) % 3
                         : 0;
  LongProblem p{static_cast<LongRows>(kind),
                {},
                static_cast<Seen>((kind + dim + length) % 4),
                hopper ? "hopper"
                : mma  ? "mma"
                       : "plain"};
  const std::int64_t rows = !hopper ? 5 : dim == 0 ? 187 : 123, dims = hopper || mma ? std::int64_t{64} << dim : 8;
  p.shape = {1, 1, 1, rows, kKeys[length], dims, dims, (kind + length) % 2 == 0 ? DType::kBF16 : DType::kF16};
  return p;
}

}  // namespace

std::string long_statistics(std::uint64_t number) {
  static std::counting_semaphore<> room(4);  // each takes up to 4 GB
  static std::mutex gpu;
  room.acquire();
  const LongProblem p = problem_of(static_cast<int>(number));
  const std::int64_t rows = p.shape.len_q, keys = p.shape.len_kv,
                     length = p.seen == Seen::kKeyLength ? keys - 777 : keys;
  const auto c = long_rows_case(p.kind, p.shape, number);
  c->problem.mask.causal = p.seen == Seen::kCausal;
  if (p.seen == Seen::kKeyLength) c->key_lengths = {length};
  if (p.seen == Seen::kSampled)
    c->problem.stats_options.sample = 2, c->problem.stats_options.sample_offset = number % 2;
  c->problem.stats_options.causes = false;
  c->link();
  std::string wrong;
  if (p.kernel == "hopper" && chosen_kernel(*c) != p.kernel)
    wrong = "the backend would take " + chosen_kernel(*c) + "; ";
  Result result;
  {
    const std::lock_guard lock(gpu);
    result = run_on_device(*c, {.backward = false, .kernel = p.kernel});
  }
  wrong += LongRowsYardstick(*c, [&](std::int64_t i) {
             return p.seen == Seen::kCausal ? keys - rows + i + 1 : length;
           }).judge(result);
  room.release();
  if (wrong.empty()) return wrong;
  return std::string(name_of(p.kind)) + ", " + p.kernel + ", " + rootdk::name_of(p.shape.dtype) + ", " +
         std::to_string(rows) + " x " + std::to_string(keys) + ", dim " + std::to_string(p.shape.dim_qk) +
         (p.seen == Seen::kCausal      ? ", causal: "
          : p.seen == Seen::kKeyLength ? ", key length: "
          : p.seen == Seen::kSampled   ? ", sampled: "
                                       : ": ") +
         wrong.substr(0, 600);
}

}  // namespace rootdk::test
