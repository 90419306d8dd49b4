// The laboratory's results as JSON, the same as the command's.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "bindings.h"
#include "rootdk/lab/explain.h"
#include "rootdk/lab/rules.h"
#include "rootdk/report/results.h"

namespace rootdk::python {

void bind_lab(nb::module_& m) {
  using Numbers = std::vector<double>;
  m.def("explain", [](const Numbers& scores, std::int64_t dk, const Numbers& q, const std::vector<Numbers>& keys,
                      const std::vector<std::string>& rules, const Numbers& upstream) {
    lab::ExplainOptions options = {scores, dk, q, keys, {}, upstream};
    for (const std::string& rule : rules) options.rules.push_back(Scale::parse(rule));
    const lab::Explanation found = lab::explain(options);
    return nb::make_tuple(report::to_json(found), report::to_text(found), report::to_sentence(found));
  });
  m.def("rules", [] { return report::to_json(lab::all_rules()); });
}

}  // namespace rootdk::python
