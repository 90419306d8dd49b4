// The audit of a checkpoint: what the command prints, as text; the package makes objects of it.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

/// What the command prints.
nb::tuple said_of(const audit::Audit& found, const std::vector<audit::HeadDrift>* moved) {
  std::string json, text, sentence, csv;
  {
    const nb::gil_scoped_release release;
    json = report::to_json(found, moved);
    text = report::to_text(found, moved);
    sentence = report::to_sentence(found);
    csv = report::to_csv(found);
  }
  return nb::make_tuple(json, text, sentence, csv);
}

audit::Audit audited(const std::filesystem::path& path, const AuditCall& call, const audit::Options& options) {
  const auto file = checkpoint::Checkpoint::open(path);
  const audit::Model model = audit::recognise(file, call.hints);
  audit::Audit found = audit::audit(file, model, options);
  if (!found.complete) raise_pending();
  return found;
}

nb::tuple run(const std::filesystem::path& path, const AuditCall& call) {
  std::optional<audit::Audit> found;
  std::optional<std::vector<audit::HeadDrift>> drift;
  {
    const nb::gil_scoped_release release;
    found = audited(path, call, call.options);
    if (call.against) {
      audit::Options options;
      options.contexts = call.options.contexts;
      options.judge_at = call.options.judge_at;
      if (call.options.run && !call.options.run->ids.empty()) options.run = call.options.run;
      options.spectra = false;
      options.stop = call.options.stop;
      drift = audit::drift(audited(*call.against, call, options), *found);
    }
  }
  nb::object hidden = nb::none();
  if (found->ran) {
    std::vector<std::size_t> shape;
    for (const std::int64_t extent : {found->ran->sequences, found->ran->length, found->ran->width})
      shape.push_back(static_cast<std::size_t>(extent));
    hidden = numpy_array(std::move(found->ran->last_hidden_state), shape);
  }
  return nb::tuple(said_of(*found, drift ? &*drift : nullptr) + nb::make_tuple(hidden));
}

// Over ranks ----------------------------------------------------------------------------------------------------------

using Elsewhere = std::tuple<std::string, std::uint64_t, std::vector<std::pair<std::uint64_t, nb::bytes>>>;
using Read = std::tuple<std::string, std::uint64_t, std::uint64_t>;  // file, offset, bytes

/// A checkpoint whose files lie on several ranks, as each of them sees it.
class AuditPart {
 public:
  AuditPart(const std::filesystem::path& path, const AuditCall& call, const std::vector<Elsewhere>& elsewhere)
      : call_(call), file_(opened(path, elsewhere)), model_(audit::recognise(file_, call_.hints)) {}

  std::size_t layers() const { return model_.layers.size(); }
  std::vector<Read> reads(const std::vector<std::size_t>& layers) const {
    return named(audit::reads_of(file_, model_, layers));
  }
  std::vector<Read> reads_of_embeddings() const { return named(audit::reads_of_embeddings(file_, model_)); }

  nb::bytes found(const std::vector<std::size_t>& layers) const {
    std::vector<std::byte> out;
    {
      const nb::gil_scoped_release release;
      const audit::Audit part = audit::audit_layers(file_, model_, layers, call_.options);
      if (!part.complete) raise_pending();
      out = audit::packed(part, layers);
    }
    return nb::bytes(out.data(), out.size());
  }

  nb::tuple joined(const std::vector<nb::bytes>& parts) const {
    std::vector<std::span<const std::byte>> all;
    for (const nb::bytes& part : parts) all.push_back(bytes_of(part));
    return said_of(audit::joined(model_, call_.options, all), nullptr);
  }

 private:
  static std::span<const std::byte> bytes_of(const nb::bytes& bytes) {
    return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
  }
  static checkpoint::Checkpoint opened(const std::filesystem::path& path, const std::vector<Elsewhere>& elsewhere) {
    std::vector<checkpoint::Elsewhere> files;
    for (const auto& [name, size, runs] : elsewhere) {
      files.push_back({name, size});
      for (const auto& [offset, bytes] : runs) {
        const std::span<const std::byte> all = bytes_of(bytes);
        files.back().runs.push_back({offset, {all.begin(), all.end()}});
      }
    }
    return checkpoint::Checkpoint::open(path, {}, std::move(files));
  }
  std::vector<Read> named(const std::vector<audit::Extent>& extents) const {
    std::vector<Read> out;
    for (const audit::Extent& e : extents)
      out.emplace_back(file_.files().at(e.file).filename().string(), e.offset, e.bytes);
    return out;
  }

  AuditCall call_;
  checkpoint::Checkpoint file_;
  audit::Model model_;
};

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
  m.def("check_checkpoint", [](const std::filesystem::path& path) { checkpoint::Checkpoint::open(path); });
  nb::class_<AuditPart>(m, "AuditPart")
      .def(nb::init<const std::filesystem::path&, const AuditCall&, const std::vector<Elsewhere>&>())
      .def_prop_ro("layers", &AuditPart::layers)
      .def("reads", &AuditPart::reads)
      .def("reads_of_embeddings", &AuditPart::reads_of_embeddings)
      .def("found", &AuditPart::found)
      .def("joined", &AuditPart::joined);
  m.def("audit_html", [](const std::string& json) { return report::audit_html(json); });
}

}  // namespace rootdk::python
