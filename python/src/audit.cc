// The audit of a checkpoint: what the command prints, as text; the package makes objects of it.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <optional>

#include "arrays.h"
#include "base/refuse.h"
#include "bindings.h"
#include "rootdk/audit.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/report/html.h"
#include "rootdk/report/results.h"
#include "signals.h"

namespace nb = nanobind;

namespace rootdk::python {

namespace {

/// audit::Options with what else the call wants to know.
struct AuditCall {
  audit::Hints hints;
  audit::Options options;
  std::optional<std::filesystem::path> against;

  AuditCall() { options.stop = signals_are_pending; }
};

void set_norm(AuditCall& call, const std::string& name) {
  using Kind = theory::Norm::Kind;
  if (name == "rms") call.hints.norm = Kind::kRms;
  else if (name == "layer") call.hints.norm = Kind::kLayer;
  else if (name == "none") call.hints.norm = Kind::kNone;
  else base::refuse("norm: \"{}\", but \"rms\", \"layer\" or \"none\" is wanted", name);
}

using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Embeddings = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void set_run(AuditCall& call, const Ids& ids) {
  audit::RunInput input;
  input.sequences = static_cast<std::int64_t>(ids.shape(0));
  input.length = static_cast<std::int64_t>(ids.shape(1));
  input.ids.assign(ids.data(), ids.data() + ids.size());
  call.options.run = std::move(input);
}

void set_embeddings(AuditCall& call, const Embeddings& embeddings) {
  audit::RunInput input;
  input.sequences = static_cast<std::int64_t>(embeddings.shape(0));
  input.length = static_cast<std::int64_t>(embeddings.shape(1));
  input.width = static_cast<std::int64_t>(embeddings.shape(2));
  input.embeddings.assign(embeddings.data(), embeddings.data() + embeddings.size());
  call.options.run = std::move(input);
}

audit::Audit audited(const std::filesystem::path& path, const AuditCall& call, const audit::Options& options) {
  const auto file = checkpoint::Checkpoint::open(path);
  const audit::Model model = audit::recognise(file, call.hints);
  audit::Audit found = audit::audit(file, model, options);
  if (!found.complete) raise_pending();
  return found;
}

nb::tuple run(const std::filesystem::path& path, const AuditCall& call) {
  std::string json, text, sentence, csv;
  std::vector<float> hidden;
  std::vector<std::size_t> shape;
  {
    const nb::gil_scoped_release release;
    audit::Audit found = audited(path, call, call.options);
    std::optional<std::vector<audit::HeadDrift>> drift;
    if (call.against) {
      audit::Options options;
      options.contexts = call.options.contexts;
      options.judge_at = call.options.judge_at;
      options.spectra = false;
      options.stop = call.options.stop;
      drift = audit::drift(audited(*call.against, call, options), found);
    }
    const auto* moved = drift ? &*drift : nullptr;
    json = report::to_json(found, moved);
    text = report::to_text(found, moved);
    sentence = report::to_sentence(found);
    csv = report::to_csv(found);
    if (found.ran) {
      hidden = std::move(found.ran->last_hidden_state);
      for (const std::int64_t extent : {found.ran->sequences, found.ran->length, found.ran->width})
        shape.push_back(static_cast<std::size_t>(extent));
    }
  }
  return nb::make_tuple(json, text, sentence, csv, shape.empty() ? nb::none() : numpy_array(std::move(hidden), shape));
}

}  // namespace

void bind_audit(nb::module_& m) {
  nb::class_<AuditCall> call(m, "AuditCall");
  call.def(nb::init<>())
      .def("set_norm", &set_norm)
      .def("set_run", &set_run)
      .def("set_embeddings", &set_embeddings)
      .def_rw("against", &AuditCall::against, nb::arg().none());
  const auto hint = [&]<class T>(const char* name, std::optional<T> audit::Hints::*field) {
    call.def_prop_rw(
        name, [field](const AuditCall& c) { return c.hints.*field; },
        [field](AuditCall& c, std::optional<T> value) { c.hints.*field = value; }, nb::for_setter(nb::arg().none()));
  };
  hint("heads", &audit::Hints::heads);
  hint("kv_heads", &audit::Hints::kv_heads);
  hint("head_dim", &audit::Hints::head_dim);
  hint("context", &audit::Hints::context);
  hint("scale", &audit::Hints::scale);
  hint("rotary_base", &audit::Hints::rotary_base);
  const auto text = [&](const char* name, std::string audit::Hints::*field) {
    call.def_prop_rw(
        name, [field](const AuditCall& c) { return c.hints.*field; },
        [field](AuditCall& c, const std::string& value) { c.hints.*field = value; });
  };
  text("scale_rule", &audit::Hints::scale_rule);
  text("family", &audit::Hints::family);
  text("family_json", &audit::Hints::family_json);
  const auto option = [&]<class T>(const char* name, T audit::Options::*field) {
    call.def_prop_rw(
        name, [field](const AuditCall& c) { return c.options.*field; },
        [field](AuditCall& c, const T& value) { c.options.*field = value; });
  };
  option("contexts", &audit::Options::contexts);
  option("judge_at", &audit::Options::judge_at);
  option("inputs", &audit::Options::inputs);
  option("spectra", &audit::Options::spectra);
  m.def("audit", &run);
  m.def("audit_html", [](const std::string& json) { return report::audit_html(json); });
}

}  // namespace rootdk::python
