// rootdk variance: the law Var(q·k) = d_k, measured.
#include "arguments.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

std::string names_of(const std::vector<lab::Component>& components) {
  std::string out;
  for (const lab::Component c : components) out += (out.empty() ? "" : ",") + std::string(lab::name_of(c));
  return out;
}

struct Options : Common {
  lab::VarianceOptions experiment;
  std::string dk = joined(experiment.dk), components = names_of(experiment.components);
};

std::vector<lab::Component> components_of(const std::string& text) {
  const std::vector<lab::Component> all = lab::VarianceOptions().components;
  std::vector<lab::Component> out;
  std::vector<std::string> names;
  for (const lab::Component c : all) names.emplace_back(lab::name_of(c));
  for (const std::string& name : split_list("--components", text)) {
    out.push_back(all[choice("--components", name, names)]);
  }
  return out;
}

int run(const Options& o) {
  lab::VarianceOptions options = o.experiment;
  options.dk = whole_numbers("--dk", o.dk);
  options.components = components_of(o.components);
  options.seed = o.seed;
  return run_experiment(o, "variance", options, lab::measure_variance);
}

}  // namespace

Verb variance_verb() {
  const auto o = std::make_shared<Options>();
  return {"variance", "The law Var(q·k) = d_k, measured, and what breaks it",
          "  rootdk variance\n"
          "  rootdk variance --dk 64,128 --components normal,student_t5 --pairs 10000000\n"
          "  rootdk variance --sigma-q 0.5 --sigma-k 0.5      another initialisation\n"
          "  rootdk variance --mean 0.5 --corr 0.2            not exactly d_k any more",
          [o](OptionList& list) {
            list.option("--dk", o->dk, "Lengths of the vectors");
            list.option("--pairs", o->experiment.pairs, "Pairs of vectors; four times as many halve the intervals");
            list.option("--components", o->components, "How components are distributed");
            list.option("--sigma-q", o->experiment.sigma_q, "Standard deviation of the components of q");
            list.option("--sigma-k", o->experiment.sigma_k, "Standard deviation of the components of k");
            list.option("--mean", o->experiment.mean, "Mean of every component");
            list.option("--corr,--correlation", o->experiment.correlation,
                        "Correlation of any two components of a vector, 0 to 1");
            list.option("--walks", o->experiment.walks,
                        "Pairs of which --json lists how q·k grows term by term, at most 256");
            o->declare(list);
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
