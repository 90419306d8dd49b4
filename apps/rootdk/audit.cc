// rootdk audit: a checkpoint, and how far each of its heads is from the right scale.
#include "rootdk/audit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "arguments.h"
#include "base/free_memory.h"
#include "base/read_number.h"
#include "destinations.h"
#include "report/audit.h"
#include "report/json.h"
#include "rootdk/checkpoint/checkpoint.h"
#include "rootdk/checkpoint/npy.h"
#include "rootdk/report/html.h"
#include "rootdk/report/results.h"
#include "text_file.h"
#include "verbs.h"

namespace rootdk::app {

namespace {

struct Options {
  std::string path, heads, kv_heads, head_dim, norm, scale, rotary_base, context, family, family_file;
  std::string contexts, at, inputs, tokens, embeddings, hidden_out, against, clip, max_scores, out, csv, html, fail_on,
      colour = "auto";
  std::int64_t worst = 10;
  int threads = 0;
  bool json = false, dry_run = false, families = false, force = false;
};

std::optional<std::int64_t> whole(const char* option, const std::string& text) {
  if (text.empty()) return {};
  const std::vector<std::int64_t> values = whole_numbers(option, text);
  if (values.size() != 1 || values[0] < 1)
    base::refuse("{}: \"{}\", but a whole number of at least 1 is wanted", option, text);
  return values[0];
}

std::optional<double> real(const char* option, const std::string& text) {
  if (text.empty()) return {};
  const std::vector<double> values = numbers(option, text);
  if (values.size() != 1) base::refuse("{}: \"{}\", but one number is wanted", option, text);
  return values[0];
}

/// A number, or a rule.
void set_scale(const std::string& text, audit::Hints& hints) {
  if (text.empty()) return;
  if (const auto value = base::read_number<double>(text)) {
    hints.scale = *value;
    return;
  }
  const std::vector<Scale> rules = scales("--scale", text);
  if (rules.size() != 1) base::refuse("--scale: \"{}\", but one rule or number is wanted", text);
  hints.scale_rule = text;
}

std::vector<theory::Verdict> verdicts_of(const char* option, const std::string& text) {
  std::vector<theory::Verdict> out;
  if (text.empty()) return out;
  std::vector<std::string> known;
  for (const theory::Verdict v : theory::kVerdicts) known.emplace_back(theory::name_of(v));
  for (const std::string& name : split_list(option, text))
    out.push_back(theory::kVerdicts[choice(option, name, known)]);
  return out;
}

audit::Hints hints_of(const Options& o) {
  audit::Hints hints;
  hints.heads = whole("--heads", o.heads);
  hints.kv_heads = whole("--kv-heads", o.kv_heads);
  hints.head_dim = whole("--head-dim", o.head_dim);
  hints.context = whole("--context", o.context);
  set_scale(o.scale, hints);
  hints.rotary_base = real("--rotary-base", o.rotary_base);
  constexpr theory::Norm::Kind kNorms[] = {theory::Norm::Kind::kRms, theory::Norm::Kind::kLayer,
                                           theory::Norm::Kind::kNone};
  if (!o.norm.empty()) hints.norm = kNorms[choice("--norm", o.norm, {"rms", "layer", "none"})];
  hints.family = o.family;
  if (!o.family_file.empty()) hints.family_json = read_text_file(o.family_file);
  return hints;
}

bool wants_colour(const Options& o) {
  if (const std::size_t when = choice("--colour", o.colour, {"auto", "always", "never"}); when != 0) return when == 1;
  const char *no = std::getenv("NO_COLOR"), *terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (no == nullptr || *no == '\0') && terminal != nullptr &&
         std::string(terminal) != "dumb";
}

// --tokens random: no file.
bool is_random(const Options& o) { return o.tokens == "random" || o.tokens.starts_with("random:"); }

// "random", or "random:8x512".
audit::RunInput random_tokens(const Options& o, audit::Model& model) {
  std::int64_t sequences = 4, length = 0;
  if (const std::size_t colon = o.tokens.find(':'); colon != std::string::npos) {
    std::string size = o.tokens.substr(colon + 1);
    const std::size_t by = size.find('x');
    const bool is_size = by != std::string::npos && by > 0 && by + 1 < size.size() &&
                         size.find_first_not_of("0123456789x") == std::string::npos &&
                         size.find('x', by + 1) == std::string::npos;
    if (!is_size) base::refuse("--tokens: \"{}\", but random or random:SEQUENCESxLENGTH is wanted", o.tokens);
    size[by] = ',';
    const std::vector<std::int64_t> numbers = whole_numbers("--tokens", size);
    sequences = numbers[0], length = numbers[1];
  }
  audit::RunInput input = audit::random_tokens(model, sequences, length);
  model.notes.push_back(fmt::format("measured on random tokens, {} x {}: near what a text would do, but not that",
                                    input.sequences, input.length));
  return input;
}

void check(const Options& o) {
  constexpr int kMost = 1024;
  if (o.path.empty()) base::refuse("which checkpoint? rootdk audit PATH");
  if (o.threads < 0 || o.threads > kMost)
    base::refuse("--threads: {}, but a number from 0 to {} is wanted", o.threads, kMost);
  if (!o.html.empty() && !report::has_html())
    base::refuse("--html: this rootdk was built without D3, which its pages need (Debian: node-d3)");
  if (o.worst < 0) base::refuse("--worst: {}, but at least 0 is wanted", o.worst);
  const bool runs = !o.tokens.empty() || !o.embeddings.empty();
  if (!o.inputs.empty() + !o.tokens.empty() + !o.embeddings.empty() > 1)
    base::refuse("--inputs, --tokens, --embeddings: one of them is wanted");
  if (!o.hidden_out.empty() && !runs) base::refuse("--hidden-out: goes with --tokens or --embeddings");
  if (o.clip.empty()) {
    for (const auto& [option, given] :
         {std::pair{"--max-scores", !o.max_scores.empty()}, {"--out", !o.out.empty()}, {"--dry-run", o.dry_run}})
      if (given) base::refuse("{}: goes with --apply-qk-clip", option);
    return;
  }
  if (o.max_scores.empty() == (o.inputs.empty() && !runs))
    base::refuse(
        "--apply-qk-clip: give the scores that were seen, with --max-scores, --tokens, --embeddings or --inputs");
  if (is_random(o))
    base::refuse("--apply-qk-clip: random tokens do not show the largest scores; give --tokens a file of real ones");
  if (o.out.empty() && !o.dry_run)
    base::refuse("--apply-qk-clip: where to? --out FILE, or --dry-run to see what would change");
  if (!o.against.empty() || !o.csv.empty() || !o.html.empty() || !o.hidden_out.empty() || !o.fail_on.empty())
    base::refuse("--apply-qk-clip: goes without --against, --csv, --html, --hidden-out and --fail-on");
}

/// All that it consists of is read, though only one of its files was named.
void reads(Destinations& destinations, const std::string& path, const checkpoint::Checkpoint& checkpoint) {
  destinations.reads(path);
  destinations.reads(std::filesystem::path(path).parent_path() / "config.json");
  for (const std::filesystem::path& file : checkpoint.files()) destinations.reads(file);
}

void check_destinations(const Options& o, const checkpoint::Checkpoint& file,
                        const std::optional<checkpoint::Checkpoint>& earlier) {
  Destinations destinations(o.force);
  reads(destinations, o.path, file);
  if (earlier) reads(destinations, o.against, *earlier);
  if (!is_random(o)) destinations.reads(o.tokens);
  for (const std::string& read : {o.inputs, o.embeddings, o.max_scores, o.family_file}) destinations.reads(read);
  destinations.writes("--csv", o.csv);
  destinations.writes("--html", o.html);
  destinations.writes("--hidden-out", o.hidden_out);
  if (!o.dry_run) destinations.writes("--out", o.out);
}

audit::Options options_of(const Options& o) {
  audit::Options options;
  if (!o.contexts.empty()) options.contexts = whole_numbers("--contexts", o.contexts);
  options.judge_at = whole("--at", o.at);
  options.inputs = o.inputs;
  if (!o.tokens.empty() && !is_random(o)) options.run = audit::read_tokens(o.tokens);
  if (!o.embeddings.empty()) options.run = audit::read_embeddings(o.embeddings);
  options.spectra = o.json || !o.html.empty();
  if (const auto threshold = real("--apply-qk-clip", o.clip)) options.clip_threshold = *threshold;
  return options;
}

// Of the audit, and of the JSON where one is wanted.
void want_memory_for(const checkpoint::Checkpoint& file, const audit::Model& model, const audit::Options& options,
                     const Telling& telling) {
  MemoryNeed need = audit::memory_of(file, model, options);
  need.bytes = base::saturated(static_cast<double>(need.bytes) + telling.bytes(report::json_size(model, options)));
  want_memory_for_options(need);
}

// Not by value: options may hold gigabytes of embeddings.
audit::Audit audited(const checkpoint::Checkpoint& file, const audit::Model& model, audit::Options& options,
                     const std::string& title, const Telling& telling = {false, false, false}) {
  want_memory_for(file, model, options, telling);
  Progress progress(title);
  const lab::Watch watch = progress.watch();
  options.progress = [&](double done, std::string_view what) { watch.report(done, what); };
  options.stop = [&] { return watch.stopped(); };
  audit::Audit found = audit::audit(file, model, options);
  options.progress = {};
  options.stop = {};
  return found;
}

int clip(const Options& o, const checkpoint::Checkpoint& file, const audit::Model& model) {
  const audit::Clip clip = {real("--apply-qk-clip", o.clip).value(), o.dry_run};
  std::vector<audit::Observed> observed;
  if (!o.max_scores.empty()) {
    observed = audit::observed_from_json(read_text_file(o.max_scores), model);
  } else {
    audit::Options options = options_of(o);
    const audit::Audit found = audited(file, model, options, "audit");
    if (!found.complete) return kInterruptedStatus;
    observed = audit::observed_in(found);
  }
  const audit::Clipped clipped = audit::clip_checkpoint(file, model, observed, clip, o.out);
  print(o.json ? report::dumped(report::json_of(clipped, clip, o.out))
               : report::text_of(clipped, clip, o.out, output_layout()));
  return 0;
}

/// Exit status where a head is what --fail-on names.
constexpr int kFailed = 3;

int status_of(const audit::Audit& found, const std::vector<theory::Verdict>& fail_on) {
  if (!found.complete) return kInterruptedStatus;
  const std::string failed = report::heads_that_are(found, fail_on);
  if (failed.empty()) return 0;
  fmt::print(stderr, "rootdk audit: --fail-on: {}\n", failed);
  return kFailed;
}

int run(const Options& o) {
  if (o.families) {
    print(audit::families_json() + "\n");
    return 0;
  }
  check(o);
  const std::vector<theory::Verdict> fail_on = verdicts_of("--fail-on", o.fail_on);
  const bool colour = wants_colour(o);
  if (o.threads > 0) base::set_threads(o.threads);
  const auto file = checkpoint::Checkpoint::open(o.path);
  std::optional<checkpoint::Checkpoint> earlier;
  if (!o.against.empty()) earlier = checkpoint::Checkpoint::open(o.against);
  check_destinations(o, file, earlier);
  const audit::Hints hints = hints_of(o);
  audit::Model model = audit::recognise(file, hints);
  if (!o.clip.empty()) return clip(o, file, model);

  audit::Options options = options_of(o);
  if (is_random(o)) options.run = random_tokens(o, model);
  const audit::Audit found = audited(file, model, options, "audit", {false, o.json, !o.html.empty()});
  std::optional<std::vector<audit::HeadDrift>> drift;
  if (earlier && found.complete) {
    options.inputs.clear();  // recorded in the later model, as embeddings are
    if (options.run && options.run->ids.empty()) options.run.reset();
    options.spectra = false;
    const audit::Audit before = audited(*earlier, audit::recognise(*earlier, hints), options, "earlier");
    if (before.complete) drift = audit::drift(before, found);
  }
  if (!o.hidden_out.empty() && found.complete) {
    const std::int64_t shape[] = {found.ran->sequences, found.ran->length, found.ran->width};
    checkpoint::write_npy(o.hidden_out, shape, std::span<const float>(found.ran->last_hidden_state));
  }
  if (!o.csv.empty()) write_file(o.csv, report::csv_of(found));
  const auto json = [&] { return report::to_json(found, drift ? &*drift : nullptr); };
  if (!o.html.empty()) write_file(o.html, report::audit_html(json()));
  if (o.json) {
    print(json());
  } else {
    const auto worst = static_cast<std::size_t>(o.worst);
    const report::Layout layout = output_layout();
    print(report::text_of(found, {colour, worst, layout}) +
          (drift ? "\n" + report::text_of(*drift, std::max<std::size_t>(worst, 1), layout) : ""));
  }
  return status_of(found, fail_on);
}

}  // namespace

Verb audit_verb() {
  const auto o = std::make_shared<Options>();
  return {"audit",
          "A checkpoint, without running it or on tokens of yours: how far the scale of each head is from right",
          "  rootdk audit model/                              a directory with its config.json\n"
          "  rootdk audit model.gguf --csv heads.csv          every head in a table\n"
          "  rootdk audit model/ --html audit.html            one page: a map, each head, what to do\n"
          "  rootdk audit model.safetensors --heads 12 --norm layer\n"
          "  rootdk audit model/ --inputs acts/               measured activations, 0.npy, 1.npy … by layer\n"
          "  rootdk audit model/ --tokens ids.npy             run it on these tokens, and measure every head\n"
          "  rootdk audit model/ --tokens random              the same where there is no text at hand\n"
          "  rootdk audit step_2000/ --against step_1000/     what training did to the scale\n"
          "  rootdk audit model.safetensors --apply-qk-clip 100 --max-scores seen.json --dry-run\n"
          "  rootdk audit model/ --fail-on not_finite,frozen  exit status 3 if a head is so: for CI\n"
          "  rootdk audit --families                          how models are described, for --family-file",
          [o](OptionList& list) {
            list.optional_argument("checkpoint", o->path, ".safetensors, its index, a directory of either, or a .gguf");
            list.option("--heads", o->heads, "How many query heads, where no config.json says");
            list.option("--kv-heads", o->kv_heads, "How many key heads");
            list.option("--head-dim", o->head_dim, "d_k");
            list.option("--norm", o->norm, "Before the projections: rms, layer or none");
            list.option("--scale", o->scale,
                        "What the model multiplies q·k with: a number, or a rule that rootdk rules lists");
            list.option("--rotary-base", o->rotary_base, "Of rotary positions; 0 for a model without them");
            list.option("--context", o->context, "The longest context");
            list.option("--family", o->family, "Take it for a model of this family");
            list.option("--family-file", o->family_file, "A JSON that describes a new family (docs/audit.md)");
            list.flag("--families", o->families, "Print the built-in families, in that language");
            list.option("--contexts", o->contexts,
                        "Numbers of keys to predict for; the default goes up to the model's own");
            list.option("--at", o->at, "Number of keys that verdicts are for; the longest if you do not say");
            list.option("--inputs", o->inputs,
                        "Activations as they enter the projections: [tokens, width].npy, [layers, tokens, width].npy, "
                        "or a directory");
            list.option("--tokens", o->tokens,
                        "Run the model on these ids, [tokens].npy or [sequences, tokens].npy, and measure every head; "
                        "random or random:SEQUENCESxLENGTH makes some up");
            list.option("--embeddings", o->embeddings,
                        "Run it on what enters the first block: [tokens, width].npy or [sequences, tokens, width].npy");
            list.option("--hidden-out", o->hidden_out,
                        "Write the last hidden state of the run there, .npy, to compare with your own framework's");
            list.option("--against", o->against, "An earlier checkpoint of the same model: what moved");
            list.option("--apply-qk-clip", o->clip, "Write a copy whose heads keep their largest score below this");
            list.option("--max-scores", o->max_scores,
                        "The largest raw score that each head was seen to make, JSON: [[layer 0's heads], …]");
            list.option("--out", o->out, "Where the copy goes; never the original");
            list.flag("--dry-run", o->dry_run, "Only say what would change");
            list.option("--csv", o->csv, "Write a line for every head there");
            list.option("--html", o->html, "Write a page there that needs nothing else");
            list.option("--fail-on", o->fail_on,
                        "Exit with 3 if any head is one of these: not_finite, exploding, frozen, uniform, sharp, …");
            list.flag("--force", o->force, kForceHelp);
            list.option("--worst", o->worst, "Heads in the table; words and fix for each of them that is not soft");
            list.option("--colour", o->colour, "auto, always or never");
            list.flag("--json", o->json, "The result as JSON on standard output (docs/audit.md)");
            list.option("--threads", o->threads, "Threads to use; 0 is all that OpenMP offers");
          },
          [o] { return run(*o); }};
}

}  // namespace rootdk::app
