#include "rootdk/scale.h"

#include <fmt/format.h>

#include <cmath>

namespace rootdk {

double Scale::factor(std::int64_t head, std::int64_t dim_qk) const {
  const auto d = static_cast<double>(dim_qk);
  switch (rule) {
    case Rule::kNone: return 1;
    case Rule::kInvSqrtDk: return 1 / std::sqrt(d);
    case Rule::kInvDk: return 1 / d;
    case Rule::kConstant: return value;
    case Rule::kPerHead: return static_cast<double>(head_values[static_cast<std::size_t>(head)]);
  }
  return 1;
}

std::string Scale::describe() const {
  switch (rule) {
    case Rule::kNone: return "1 (none)";
    case Rule::kInvSqrtDk: return "1/sqrt(d_k)";
    case Rule::kInvDk: return "1/d_k";
    case Rule::kConstant: return fmt::format("constant {:g}", value);
    case Rule::kPerHead: return "one per head";
  }
  return "unknown";
}

}  // namespace rootdk
