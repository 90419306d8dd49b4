// rootdk attend: attention on the user's own arrays.
#include <fmt/format.h>

#include <span>

#include "arguments.h"
#include "arrays.h"
#include "base/free_memory.h"
#include "base/head_columns.h"
#include "destinations.h"
#include "engine/call_bytes.h"
#include "report/json.h"
#include "results.h"
#include "rootdk/attention.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

// As report::json_of(Attended) has them: whose they are, and what the table of statistics has.
double numbers_of_a_head(StatsLevel level) {
  double count = 2;
#define ROOTDK_STATISTIC(from, type, name, value, merges, doc) count += base::words::from <= level ? 1 : 0;
#include "rootdk/statistics.def"
  return count;
}

struct Options : Common {
  std::string q, k, v, rule = "sqrt_dk", stats = "full", out, diagonal = "bottom-right";
  bool causal = false;
  double soft_cap = 0;
  PageOption page;
};

StatsLevel level_of(const std::string& text) {
  constexpr StatsLevel kLevels[] = {StatsLevel::kNone, StatsLevel::kBasic, StatsLevel::kFull};
  return kLevels[choice("--stats", text, {"none", "basic", "full"})];
}

Diagonal diagonal_of(const std::string& text) {
  return choice("--diagonal", text, {"bottom-right", "top-left"}) == 0 ? Diagonal::bottom_right()
                                                                       : Diagonal::top_left();
}

Problem problem_of(const Options& o) {
  Problem problem;
  problem.scale = Scale::parse(o.rule);
  problem.mask.causal = o.causal;
  problem.mask.diagonal = diagonal_of(o.diagonal);
  problem.stats = level_of(o.stats);
  if (o.soft_cap != 0) problem.soft_cap = static_cast<float>(o.soft_cap);
  return problem;
}

// q, k, v and the output, once more as it is written; a call; the JSON that is always made.
void want_memory_for(const Options& o, const Problem& problem, std::span<const ArrayFile, 3> files) {
  const Inputs inputs{files[0].view(o.q), files[1].view(o.k), files[2].view(o.v)};
  const Shape s = rootdk::shape_of(inputs, problem);
  const double heads = static_cast<double>(s.batch) * static_cast<double>(s.heads_q);
  const double output =
      heads * static_cast<double>(s.len_q) * static_cast<double>(s.dim_v) * static_cast<double>(size_of(s.dtype));
  double bytes = (o.out.empty() ? 1 : 2) * output + engine::bytes_of_call(problem, s);
  for (const ArrayFile& file : files) bytes += file.bytes();
  const Telling telling = {true, o.json, !o.page.path.empty()};
  if (problem.stats != StatsLevel::kNone) bytes += telling.bytes({0, heads * numbers_of_a_head(problem.stats)});
  want_memory({base::saturated(bytes), Machine::here().threads, "q, k, v",
               fmt::format("{} heads of {} queries and {} keys", heads, s.len_q, s.len_kv)});
}

int run(const Options& o) {
  o.begin();
  const Problem problem = problem_of(o);
  Destinations destinations(o.page.force);
  for (const std::string& read : {o.q, o.k, o.v}) destinations.reads(read);
  destinations.writes("--out", o.out);
  o.page.check(destinations);
  const ArrayFile files[] = {ArrayFile(o.q), ArrayFile(o.k), ArrayFile(o.v)};
  want_memory_for(o, problem, files);
  const Array q = files[0].read(), k = files[1].read(), v = files[2].read();
  const Inputs inputs{q.view(o.q), k.view(o.k), v.view(o.v)};
  const Plan plan = make_plan(problem, rootdk::shape_of(inputs, problem));
  std::vector<std::int64_t> shape = q.shape;
  shape.back() = v.shape.back();
  Array output = make_array(q.dtype, std::move(shape));
  const Extents extents = {plan.shape.batch, plan.shape.heads_q, plan.shape.len_q, plan.shape.dim_v};
  report::Attended attended{plan.shape, problem.scale.name(), o.causal, plan.kernel, plan.isa, {}};
  const double seconds = timed([&] {
    attended.stats = forward(problem, inputs,
                             {Tensor{output.bytes.data(), output.dtype, Device::kCpu, extents, row_major(extents)}});
  });
  if (!o.out.empty()) write_file(o.out, npy_bytes(output));
  Told told = tell(attended);
  told.data["output"] = o.out.empty() ? report::Json(nullptr) : report::Json(o.out);
  o.page.write(o, {"attend", "Attention on your own arrays", "What did the scores of each head do?"}, told, seconds);
  if (o.json) {
    print(report::dumped(told.data));
  } else {
    print(told.text + output_layout().wrap(o.out.empty()
                                               ? "The output was not kept; --out o.npy would have."
                                               : "The output is in " + report::unbroken(base::visible(o.out)) + "."));
  }
  return 0;
}

}  // namespace

Verb attend_verb() {
  const auto o = std::make_shared<Options>();
  return {"attend", "Attention on your own arrays: the output, and what the scores did",
          "  rootdk attend q.npy k.npy v.npy --causal --out o.npy\n"
          "  rootdk attend q.npy k.npy v.npy --html heads.html\n"
          "  rootdk attend q.npy k.npy v.npy --rule \"sqrt_dk*ssmax(0.43)\" --json",
          [o](OptionList& list) {
            list.argument("q", o->q,
                          "Queries, .npy: [[[batch,] heads,] length, dim]; f64 stays f64, all else becomes f32");
            list.argument("k", o->k, "Keys, likewise; fewer heads than q are shared by groups of query heads");
            list.argument("v", o->v, "Values, likewise");
            list.option("--rule", o->rule, "The scale; rootdk rules lists them");
            list.flag("--causal", o->causal, "A query sees the keys up to its own position");
            list.option("--diagonal", o->diagonal,
                        "Where queries stand: bottom-right (the last on the last key) or top-left (as PyTorch)");
            list.option("--soft-cap", o->soft_cap, "cap·tanh(s/cap) after the scale; 0 is off");
            list.option("--stats", o->stats, "none, basic or full");
            list.option("--out", o->out, "Where to write the output, .npy");
            o->page.declare(list);
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
