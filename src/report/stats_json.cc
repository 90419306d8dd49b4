// The envelope (kind, version) around the fields that stats_fields.h lists.
#include "rootdk/report/stats_json.h"

#include "base/memory_errors.h"
#include "report/stats_fields.h"

namespace rootdk::report {

namespace {

constexpr const char* kFormat = "rootdk-stats";
constexpr int kVersion = 2;

template <class Value, class Visit>
std::string written(const char* kind, const Value& value, const Visit& visit) {
  return base::with_memory_errors([&] {
    nlohmann::ordered_json document;
    Writer writer(document);
    writer.constant("format", kFormat);
    writer.constant("version", kVersion);
    writer.constant("kind", kind);
    visit(writer, value);
    return document.dump();
  });
}

template <class Value, class Visit>
Value read(const char* kind, std::string_view text, const Visit& visit) {
  return base::with_memory_errors([&] {
    const nlohmann::json document = parse_json(text);
    const Reader reader(document);
    reader.constant("format", kFormat);
    reader.constant("version", kVersion);
    reader.constant("kind", kind);
    Value value;
    visit(reader, value);
    return value;
  });
}

const auto kStatsFields = [](auto& io, auto& stats) { stats_fields(io, stats); };
const auto kGradientFields = [](auto& io, auto& stats) { gradient_fields(io, stats); };

}  // namespace

std::string to_json(const Stats& stats) { return written("stats", stats, kStatsFields); }
std::string to_json(const DecayedStats& stats) { return written("decayed", stats, kStatsFields); }
std::string to_json(const GradientStats& stats) { return written("gradients", stats, kGradientFields); }

Stats stats_from_json(std::string_view text) { return read<Stats>("stats", text, kStatsFields); }
DecayedStats decayed_stats_from_json(std::string_view text) {
  return read<DecayedStats>("decayed", text, kStatsFields);
}
GradientStats gradient_stats_from_json(std::string_view text) {
  return read<GradientStats>("gradients", text, kGradientFields);
}

}  // namespace rootdk::report
