// Judgements as JSON; docs/stats-json.md has the format.
#include "base/memory_errors.h"
#include "report/json_io.h"
#include "rootdk/report/stats_json.h"

namespace rootdk::report {

namespace {

void judgement_fields(Writer& io, const theory::Judgement& j) {
  io.constant("verdict", theory::name_of(j.verdict));
  auto& codes = io.node()["codes"] = nlohmann::ordered_json::array();
  for (const theory::Verdict code : j.codes) codes.push_back(theory::name_of(code));
  io.constant("ground", theory::name_of(j.ground));
  io.number("keys", j.keys);
  io.number("sigma", j.sigma);
  io.number("sigma_c", j.sigma_c);
  io.number("entropy", j.entropy);
  io.number("predicted_entropy", j.predicted_entropy);
  io.number("stein_ratio", j.stein_ratio);
  io.number("rounding", j.rounding);
  io.number("unit_variance_factor", j.unit_variance_factor);
  io.number("divisor", j.divisor);
  io.number("divisor_over_sqrt_dk", j.divisor_over_sqrt_dk);
  io.constant("words", j.words);
  io.constant("fix", j.fix);
}

}  // namespace

std::string to_json(std::span<const theory::Judgement> judgements) {
  return base::with_memory_errors([&] {
    nlohmann::ordered_json document;
    Writer writer(document);
    writer.constant("format", "rootdk-judgements");
    writer.constant("version", 1);
    auto& nodes = writer.node()["judgements"] = nlohmann::ordered_json::array();
    for (const theory::Judgement& judgement : judgements) {
      Writer one(nodes.emplace_back());
      judgement_fields(one, judgement);
    }
    // Words may come from anywhere; bytes that are not UTF-8 become U+FFFD.
    return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  });
}

}  // namespace rootdk::report
