// The table of reasons that kernels give and the remedy for each.
#include "engine/slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace rootdk::engine {

namespace {

/// What to do about a reason that the kernels give (mma_misfit and mma_backward_misfit, the last that are asked), by
/// words that are in it. The first that fits counts.
struct Remedy {
  std::string_view reason, advice;
};

constexpr Remedy kRemedies[] = {
    {"takes f16 and bf16", "cast q, k and v to bf16 or f16, or call it under torch.autocast"},
    {"takes dims up to 256", "use more heads of at most 256 dims"},
    {"lengths and offsets", "cut the sequence into parts, and merge their results"},
    {"fewer rows", "cut the batch into parts"},
    {"ROOTDK_KERNEL", "take ROOTDK_KERNEL out of the environment"},
};

std::string line(const Plan& plan, std::string_view why, std::string_view advice) {
  return fmt::format("slow: {} runs without tensor cores, around 100 times slower, since {}: {}",
                     plan.pass == Pass::kForward ? "forward" : "backward", why, advice);
}

}  // namespace

std::string why_slow(const Plan& plan) {
  if (plan.device != Device::kCuda || plan.kernel != "plain") return {};
  std::string why = plan.passed_over.empty() ? "no other kernel is there" : plan.passed_over.back();
  if (const std::size_t colon = why.find(": "); colon != std::string::npos)
    why.replace(colon, 1, "");  // "mma: takes …" is a sentence
  const auto remedy = std::find_if(std::begin(kRemedies), std::end(kRemedies),
                                   [&](const Remedy& r) { return why.find(r.reason) != std::string::npos; });
  return line(plan, why,
              remedy != std::end(kRemedies) ? remedy->advice : "docs/cuda.md says what the fast kernels take");
}

}  // namespace rootdk::engine
