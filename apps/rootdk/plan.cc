// rootdk plan: what attention over ranks would cost, in each way.
#include <array>
#include <cmath>

#include "arguments.h"
#include "base/free_memory.h"
#include "quantities.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 29, kMostRanks = 4096, kMostHeads = 1 << 16;
constexpr std::array<Unit, 1> kTokens = {{{""}}};
constexpr std::array<Unit, 2> kRates = {{{"B/s"}, {"b/s", 0.125}}};  // bytes and bits
constexpr std::array<Unit, 3> kFlops = {{{"FLOP/s"}, {"FLOPS"}, {""}}};
constexpr std::array<Unit, 1> kSeconds = {{{"s"}}};
constexpr std::array<Unit, 1> kBytes = {{{"B"}}};

struct Options : Common {
  std::int64_t ranks = 8, batch = 1, heads = 32, kv_heads = 8, dim = 128;
  int ranks_per_node = 8;
  std::string tokens = "1M", dtype = "bf16", layout = "auto", flops = "500TFLOP/s";
  std::string link = "50GB/s", link_inside = "450GB/s", latency = "10us", latency_inside = "5us", memory;
  bool causal = false;
};

std::int64_t within(const char* option, double value, std::int64_t most) {
  if (!(value >= 1 && value <= static_cast<double>(most) && value == std::floor(value)))
    base::refuse("{}: {}, but a whole number from 1 to {} is wanted", option, value, most);
  return static_cast<std::int64_t>(value);
}

Shape shape_of(const Options& o) {
  static const std::vector<std::string> kNames = {"f32", "f16", "bf16", "f64"};
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
  Shape s;
  s.batch = within("--batch", static_cast<double>(o.batch), kMostHeads);
  s.heads_q = within("--heads", static_cast<double>(o.heads), kMostHeads);
  s.heads_kv = within("--kv-heads", static_cast<double>(o.kv_heads), kMostHeads);
  if (s.heads_q % s.heads_kv != 0)
    base::refuse("--kv-heads: {}, which does not divide the {} heads", s.heads_kv, s.heads_q);
  s.dim_qk = s.dim_v = within("--dim", static_cast<double>(o.dim), 1 << 16);
  s.len_q = s.len_kv = within("--tokens", quantity("--tokens", o.tokens, kTokens, "10M"), kMostTokens);
  s.dtype = kTypes[choice("--dtype", o.dtype, kNames)];
  return s;
}

distributed::Cluster cluster_of(const Options& o) {
  distributed::Cluster m;
  const auto positive = [](const char* option, double value) {
    if (!(value > 0)) base::refuse("{}: {}, but more than 0 is wanted", option, value);
    return value;
  };
  m.flops = positive("--flops", quantity("--flops", o.flops, kFlops, "500TFLOP/s"));
  m.link = positive("--link-inside", quantity("--link-inside", o.link_inside, kRates, "450GB/s"));
  m.link_between = positive("--link", quantity("--link", o.link, kRates, "400GB/s or 400Gb/s"));
  m.latency = quantity("--latency-inside", o.latency_inside, kSeconds, "5us");
  m.latency_between = quantity("--latency", o.latency, kSeconds, "10us");
  m.ranks_per_node = static_cast<int>(within("--ranks-per-node", o.ranks_per_node, kMostRanks));
  if (!o.memory.empty()) m.memory = positive("--memory", quantity("--memory", o.memory, kBytes, "80GB"));
  return m;
}

int run(const Options& o) {
  o.begin();
  report::RankPlan plan;
  plan.shape = shape_of(o);
  plan.cluster = cluster_of(o);
  plan.ranks = static_cast<int>(within("--ranks", static_cast<double>(o.ranks), kMostRanks));
  static const std::vector<std::string> kLayouts = {"auto", "even", "zigzag"};
  const std::size_t layout = choice("--layout", o.layout, kLayouts);
  plan.causal = o.causal;
  plan.layout = layout == 0 ? (o.causal ? "zigzag" : "even") : kLayouts[layout];
  const auto pairs = static_cast<double>(plan.ranks) * plan.ranks;  // of ranks: what is sent, and seen
  want_memory({base::saturated(pairs * 8 * 8), 1, "--ranks", std::to_string(plan.ranks)});
  const distributed::Layout tokens = plan.layout == "zigzag" ? distributed::Layout::zigzag(plan.shape.len_q, plan.ranks)
                                                             : distributed::Layout::even(plan.shape.len_q, plan.ranks);
  Mask mask;
  mask.causal = o.causal;
  plan.choice = distributed::plan(mask, plan.shape, tokens, tokens, plan.cluster);
  emit(o, plan);
  return 0;
}

}  // namespace

Verb plan_verb() {
  const auto o = std::make_shared<Options>();
  return {"plan", "Attention over many ranks: time, memory, bytes and efficiency of each way",
          "  rootdk plan --ranks 1024 --tokens 10M --link 400GB/s --causal\n"
          "  rootdk plan --ranks 128 --tokens 1M --heads 64 --kv-heads 8 --memory 20GB --json",
          [o](OptionList& list) {
            list.option("--ranks", o->ranks, "Ranks that share the sequence");
            list.option("--tokens", o->tokens, "Its length: 8192, 128k, 10M");
            list.option("--batch", o->batch, "Sequences");
            list.option("--heads", o->heads, "Query heads");
            list.option("--kv-heads", o->kv_heads, "Key and value heads, which divide them");
            list.option("--dim", o->dim, "Of a head");
            list.option("--dtype", o->dtype, "f32, f16, bf16 or f64");
            list.flag("--causal", o->causal, "A query sees the keys up to its own");
            list.option("--layout", o->layout, "even, zigzag, or auto: zigzag if causal");
            list.option("--flops", o->flops, "What a rank's kernel does");
            list.option("--link", o->link, "Of a rank to other nodes, one way (B/s bytes, b/s bits)");
            list.option("--latency", o->latency, "A message between nodes");
            list.option("--link-inside", o->link_inside, "Of a rank inside its node");
            list.option("--latency-inside", o->latency_inside, "A message inside a node");
            list.option("--ranks-per-node", o->ranks_per_node, "Consecutive ranks that are a node");
            list.option("--memory", o->memory, "What a rank has for what comes on top (default: enough)");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
