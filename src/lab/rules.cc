// The registry of scales (Scale::parse) joined with the table of who proposed what, and rules that are no scales.
#include "rootdk/lab/rules.h"

#include <string_view>

#include "rootdk/scale.h"

namespace rootdk::lab {

namespace {

struct Source {
  std::string_view name, source;
};

// Who proposed what the registry knows.
constexpr Source kSources[] = {
    {"none", "Luong et al. 2015, arXiv 1508.04025 (dot attention)"},
    {"sqrt_dk", "Vaswani et al. 2017, arXiv 1706.03762"},
    {"dk", "Yang et al. 2022 (muP), arXiv 2203.03466"},
    {"constant", "a model's own number"},
    {"unit_variance", "Var(q·k) = d_k·σ_q²·σ_k² for means of 0"},
    {"yarn", "Peng et al. 2023 (YaRN), arXiv 2309.00071"},
    {"ssmax", "Nakanishi 2025 (Scalable-Softmax), arXiv 2501.19399"},
    {"entropy_invariant", "Su 2021, kexue.fm/archives/8823"},
    {"llama4", "Meta 2025, the Llama 4 release"},
};

std::string source_of(std::string_view name) {
  for (const Source& s : kSources)
    if (s.name == name) return std::string(s.source);
  return {};
}

}  // namespace

std::vector<Rule> all_rules() {
  std::vector<Rule> all;
  for (const ScaleName& scale : Scale::names())
    all.push_back({std::string(scale.name), std::string(scale.parameters), std::string(scale.description),
                   source_of(scale.name), true, "scale (rootdk/scale.h)"});
  const Rule beside[] = {
      {"per head", "", "c_h, one number per head, given or learned", "learned scales, many models", false,
       "scale, one number for each head; gradient d_scale"},
      {"measured", "", "c_h = 1/√(within-row variance of q·k), from Gram matrices", "this library: ⟨QᵀQ/T, Cov(K)⟩",
       false, "adaptive_unit_variance (rootdk/adaptive.h)"},
      {"QK-norm", "", "norm(q)·norm(k)/√d_k; RMS, layer or L2 norm with gains",
       "Henry et al. 2020, arXiv 2010.04245; Dehghani et al. 2023, arXiv 2302.05442", false,
       "qk_norm in Python, rootdk/qk_norm.h in C++"},
      {"cosine", "", "cos(q, k)·exp(min(w, ln 100))", "Liu et al. 2021 (Swin v2), arXiv 2111.09883", false,
       "cosine_factors (rootdk/qk_norm.h)"},
      {"soft-cap", "", "cap·tanh(s/cap)", "Gemma 2 2024, arXiv 2408.00118", false,
       "softcap in Python, soft_cap in C and C++"},
      {"sink", "", "one more key of score z and value 0; z = 0 is softmax-off-by-one",
       "Xiao et al. 2023, arXiv 2309.17453; Miller 2023", false, "sink; gradient d_sink"},
      {"ALiBi", "", "s − slope·distance", "Press et al. 2021, arXiv 2108.12409", false,
       "alibi in Python, alibi_slopes in C and C++"},
      {"temperature", "", "scores sharpened by a polynomial of the row's entropy, inference only",
       "Veličković et al. 2024, arXiv 2410.01104", false, "forward_adaptive_temperature (rootdk/adaptive.h)"},
      {"QK-clip", "", "weights shrunk by τ/(largest score) where that passed τ", "Kimi K2 2025, arXiv 2507.20534",
       false, "qk_clip (rootdk/weight_rules.h)"},
      {"σ-reparam", "", "W ← gain·W/σ₁(W)", "Zhai et al. 2023, arXiv 2303.06296", false,
       "sigma_reparam (rootdk/weight_rules.h)"},
      {"your own", "", "f(s) with its derivative", "you", false, "ScoreTransform (rootdk/transform.h)"},
  };
  all.insert(all.end(), std::begin(beside), std::end(beside));
  return all;
}

}  // namespace rootdk::lab
