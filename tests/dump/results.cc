// Everything that random problems give, as text: tools/same_results.py compares the dumps of two builds bit by bit.
//
// usage: dump_results [PROBLEMS [FIRST_SEED]]   (500 from seed 0)
//
// A line is the seed, the kernel, the name of an array and a digest of its bits; statistics are whole, as JSON, which
// keeps every bit. A problem has full statistics, gaps, buckets and key mass whatever it was drawn with.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rootdk/report/stats_json.h"
#include "support/case.h"
#include "support/run_case.h"

namespace rootdk::test {
namespace {

/// FNV-1a over the bits of each number; every NaN is the same one.
std::uint64_t digest(const std::vector<double>& x) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const double value : x) {
    const auto bits = value != value ? ~std::uint64_t{0} : std::bit_cast<std::uint64_t>(value);
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (bits >> (8 * byte) & 0xff)) * 0x100000001b3;
  }
  return hash;
}

void dump(const std::string& who, const Result& r) {
  const auto line = [&](const std::string& name, const std::vector<double>& x) {
    std::printf("%s %s %zu:%016llx\n", who.c_str(), name.c_str(), x.size(), static_cast<unsigned long long>(digest(x)));
  };
  line("o", r.o), line("lse", r.lse), line("raw_max", r.raw_max), line("score_max", r.score_max);
  line("p_max", r.p_max), line("key_mass", r.key_mass);
  line("d_q", r.d_q), line("d_k", r.d_k), line("d_v", r.d_v), line("d_scale", r.d_scale), line("d_bias", r.d_bias);
  line("d_sink", r.d_sink), line("d_log_n_gain", r.d_log_n_gain), line("d_log_n_offset", r.d_log_n_offset);
  for (std::size_t i = 0; i < r.rows.size(); ++i) line("rows." + std::to_string(i), r.rows[i]);
  std::printf("%s stats %s\n", who.c_str(), report::to_json(r.stats).c_str());
  std::printf("%s gradient_stats %s\n", who.c_str(), report::to_json(r.gradient_stats).c_str());
}

void dump_all(int problems, int first) {
  for (int seed = first; seed < first + problems; ++seed) {
    const auto c = random_case(static_cast<std::uint64_t>(seed), {.work = std::int64_t{1} << 20, .longest = 4096});
    c->problem.stats = StatsLevel::kFull;
    c->problem.stats_options = {.sample = 1 + seed % 3, .by_keys = true, .gaps = true, .key_mass = true};
    for (const engine::Kernel& kernel : engine::kernel_table()) {
      if (kernel.name == "reference" && c->shape.len_q * c->shape.len_kv > 4096) continue;  // it is slow
      if (!engine::misfit(kernel, c->shape, Machine::here()).empty()) continue;
      std::string who = std::to_string(seed) + " " + kernel.label();
      for (std::size_t i = who.find(' ') + 1; i < who.size(); ++i)
        if (who[i] == ' ') who[i] = '-';
      dump(who, run(*c, kernel));
    }
  }
}

}  // namespace
}  // namespace rootdk::test

int main(int count, char** arguments) {
  rootdk::test::dump_all(count > 1 ? std::atoi(arguments[1]) : 500, count > 2 ? std::atoi(arguments[2]) : 0);
}
