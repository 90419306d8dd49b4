// Our own layout: lists of plain values on one line, everything else indented by two.
#include "report/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/read_number.h"
#include "base/visible.h"

namespace rootdk::report {

namespace {

void write(const Json& json, std::size_t indent, std::string& out) {
  const bool list = json.is_array();
  const bool on_one_line =
      list && std::none_of(json.begin(), json.end(), [](const Json& each) { return each.is_structured(); });
  if (!json.is_structured() || json.empty()) {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  const std::string line = on_one_line ? "" : "\n" + std::string(indent + 2, ' ');
  out += list ? '[' : '{';
  for (auto each = json.begin(); each != json.end(); ++each) {
    if (each != json.begin()) out += on_one_line ? ", " : ",";
    out += line;
    if (!list) out += Json(each.key()).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    write(*each, indent + 2, out);
  }
  if (!on_one_line) out += "\n" + std::string(indent, ' ');
  out += list ? ']' : '}';
}

}  // namespace

std::string dumped(const Json& json) {
  std::string out;
  write(json, 0, out);
  return base::with_visible_direction(out) + '\n';
}

double shortest(float x) {
  if (!std::isfinite(x)) return static_cast<double>(x);
  return base::read_number<double>(fmt::format("{}", x)).value();
}

}  // namespace rootdk::report
