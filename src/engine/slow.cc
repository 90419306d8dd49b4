// The table of reasons that kernels give and the remedy for each.
#include "engine/slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace rootdk::engine {

namespace {

/// What to do about a reason that the kernels give (hopper_misfit and hopper_backward_misfit), by words that are in it.
/// The first that fits counts.
struct Remedy {
  std::string_view reason, advice;
};

constexpr std::string_view kPad =
    "pad q, k and v with zeros to dims that are multiples of 8, 256 at most, and give the scale of the dim that q had";
constexpr std::string_view kNarrow = "use more heads of at most 256 dims";

constexpr Remedy kRemedies[] = {
    {"compute capability", "run it on a GPU of compute capability 9.0 (H100, H200)"},
    {"takes f16 and bf16", "cast q, k and v to bf16 or f16, or call it under torch.autocast"},
    {"multiples of 8", kPad},
    {"takes dims up to 256", kNarrow},
    {"full statistics of dims above 128",
     "ask for stats=\"basic\" where there are gradients, or use heads of at most 128 dims"},
    {"takes full statistics of scores", "ask for stats=\"basic\", or leave out what is more than a scale: soft-cap, "
                                        "bias, boolean mask, ALiBi, dropout, scale by length"},
    {"key starts", "pad on the right, which key_lengths says, or pack the batch end to end, with documents"},
    {"pages", "gather the pages into k and v"},
    {"boolean masks", "say it with causal, window, key_lengths or documents where the mask is one of those"},
    {"biases", "say what only hides keys with causal, window, key_lengths or documents; what adds to scores has no "
               "fast kernel here"},
    {"ALiBi", "train without alibi: rotary positions leave scores as they are"},
    {"soft-cap", "train without softcap: qk_norm bounds scores, too"},
    {"dropout", "train with dropout=0"},
    {"scale by length", "train with a scale that is a number, or one per head"},
    {"positive scales", "negate q, and give the scale without its sign"},
    {"lengths and offsets", "cut the sequence into parts, and merge their results"},
    {"fewer rows", "cut the batch into parts"},
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
    why.replace(colon, 1, "");  // "hopper: takes …" is a sentence
  if (why.find("takes dims") != std::string::npos && std::max(plan.shape.dim_qk, plan.shape.dim_v) > 256)
    return line(plan, why, kNarrow);
  const auto remedy = std::find_if(std::begin(kRemedies), std::end(kRemedies),
                                   [&](const Remedy& r) { return why.find(r.reason) != std::string::npos; });
  return line(plan, why,
              remedy != std::end(kRemedies) ? remedy->advice : "docs/cuda.md says what the fast kernels take");
}

std::string slow_strides(const Plan& plan, const char* name, const ConstTensor& tensor) {
  const std::string why = fmt::format("{} cannot read {} with its strides", plan.kernel, name);
  if (tensor.shape[3] % 8 != 0) return line(plan, why, kPad);
  return line(plan, why,
              fmt::format("call {0}.contiguous(), or lay {0} out with dim innermost, its other strides multiples of 8 "
                          "elements and its address of 16 bytes",
                          name));
}

}  // namespace rootdk::engine
