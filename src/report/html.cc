// The page is a constant; only the JSON inside it differs. What the page relies on is checked here, so that it need not
// be there.
#include "rootdk/report/html.h"

#include <nlohmann/json.hpp>

#include "base/refuse.h"
#include "base/visible.h"
#include "report/page.h"

namespace rootdk::report {

namespace {

using AnyJson = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF", kLineSeparator = "\xE2\x80\xA8",
                           kParagraphSeparator = "\xE2\x80\xA9";

/// The JSON library's message without its own name for it: "[json.exception.parse_error.101] parse error at line …".
std::string_view reason(const AnyJson::exception& error) {
  const std::string_view what = error.what();
  const std::size_t end = what.find("] ");
  return end == std::string_view::npos ? what : what.substr(end + 2);
}

AnyJson parsed(const char* name, std::string_view text) {
  try {
    return AnyJson::parse(text);
  } catch (const AnyJson::parse_error& error) {
    base::refuse("{}: not JSON: {}", name, reason(error));
  } catch (const AnyJson::out_of_range& error) {  // a number that no double can hold
    base::refuse("{}: {}", name, reason(error));
  }
}

void check(const AnyJson& results) {
  if (!results.is_object()) base::refuse("results_json: is {}, but an object was wanted", results.type_name());
  const AnyJson format = results.value("format", AnyJson());
  if (const auto* name = format.get_ptr<const std::string*>(); !name || *name != "rootdk-results")
    base::refuse("results_json: format is {}, but \"rootdk-results\" was wanted", format.dump());
  const AnyJson version = results.value("format_version", AnyJson());
  if (!version.is_number_integer() || version.get<std::int64_t>() != 2)
    base::refuse("results_json: format_version is {}, but this rootdk knows 2", version.dump());
  const AnyJson chapters = results.value("chapters", AnyJson());
  if (!chapters.is_array()) base::refuse("results_json: chapters is {}, but a list was wanted", chapters.type_name());
  for (std::size_t i = 0; i < chapters.size(); ++i) {
    const AnyJson& chapter = chapters[i];
    if (!chapter.is_object())
      base::refuse("results_json: chapters[{}] is {}, but an object was wanted", i, chapter.type_name());
    for (const char* name : {"title", "lead", "conclusion"}) {
      const AnyJson text = chapter.value(name, AnyJson());
      if (!text.is_string())
        base::refuse("results_json: chapters[{}].{} is {}, but a string was wanted", i, name, text.type_name());
    }
    const AnyJson data = chapter.value("data", AnyJson());
    if (!data.is_object())
      base::refuse("results_json: chapters[{}].data is {}, but an object was wanted", i, data.type_name());
    if (!data.value("experiment", AnyJson()).is_string())
      base::refuse("results_json: chapters[{}].data.experiment is {}, but a string was wanted", i,
                   data.value("experiment", AnyJson()).type_name());
  }
}

/// Takes a byte order mark away.
AnyJson checked_results(std::string_view& json) {
  if (json.starts_with(kByteOrderMark)) json.remove_prefix(kByteOrderMark.size());
  AnyJson results = parsed("results_json", json);
  check(results);
  return results;
}

/// The same JSON, which no HTML parser takes for the end of a script and no old JavaScript parser for a line's end. In
/// JSON these characters stand in strings only, where an escape means the same.
std::string fit_for_script(std::string_view json) {
  std::string out;
  out.reserve(json.size() + json.size() / 16);
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string_view rest = json.substr(i);
    if (rest.front() == '<') {
      out += "\\u003c";
    } else if (rest.starts_with(kLineSeparator) || rest.starts_with(kParagraphSeparator)) {
      out += rest.starts_with(kLineSeparator) ? "\\u2028" : "\\u2029";
      i += kLineSeparator.size() - 1;
    } else {
      out += rest.front();
    }
  }
  return out;
}

// What the audit's page relies on.
void check_audit(const AnyJson& audit) {
  if (!audit.is_object()) base::refuse("audit_json: is {}, but an object was wanted", audit.type_name());
  for (const char* name : {"layers", "contexts"})
    if (!audit.value(name, AnyJson()).is_array())
      base::refuse("audit_json: {} is {}, but a list was wanted", name, audit.value(name, AnyJson()).type_name());
  for (const AnyJson& layer : audit["layers"]) {
    if (!layer.is_object() || !layer.value("heads", AnyJson()).is_array())
      base::refuse("audit_json: a layer has no list of heads");
    for (const AnyJson& head : layer["heads"]) {
      if (!head.is_object()) base::refuse("audit_json: a head is {}, but an object was wanted", head.type_name());
      for (const char* name : {"keys", "entropy", "sigma_over_critical", "participation", "p_max", "verdicts"})
        if (!head.value(name, AnyJson()).is_object())
          base::refuse("audit_json: a head's {} is {}, but an object was wanted", name,
                       head.value(name, AnyJson()).type_name());
    }
  }
}

/// What a link to the page shows, and the window's title.
struct About {
  std::string title, description;
};

std::string fit_for_attribute(std::string_view text) {
  std::string out;
  for (const char c : base::visible(text)) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\n': out += ' '; break;
      default: out += c;
    }
  return out;
}

/// The page's head with its places filled; what is put in is not looked into again.
std::string with_about(std::string_view before, const About& about) {
  constexpr std::string_view kTitle = "@TITLE@", kAbout = "@ABOUT@";
  const std::size_t end = before.find("<style>");  // nothing after it has places
  std::string out;
  for (std::size_t i = 0; i < end;) {
    const std::string_view rest = before.substr(i);
    const bool title = rest.starts_with(kTitle);
    if (title || rest.starts_with(kAbout)) {
      out += fit_for_attribute(title ? about.title : about.description);
      i += title ? kTitle.size() : kAbout.size();
    } else {
      out += before[i++];
    }
  }
  return out.append(before.substr(end));
}

std::string around(std::string_view before, const About& about, std::string_view json, std::string_view after) {
  return with_about(before, about).append(fit_for_script(json)).append(after);
}

About about_results(const AnyJson& results) {
  const AnyJson& chapters = results["chapters"];
  if (chapters.size() == 1)
    return {chapters[0]["title"].get<std::string>() + ": measured by rootdk", chapters[0]["conclusion"]};
  return {"Why attention is scaled: measured by rootdk",
          fmt::format("{} experiments on the scale of attention: what was measured beside what theory predicts, and "
                      "what follows.",
                      chapters.size())};
}

About about_audit(const AnyJson& audit) {
  const auto text = [&](const char* name, const char* otherwise) {
    const AnyJson value = audit.value(name, AnyJson());
    return value.is_string() ? value.get<std::string>() : otherwise;
  };
  return {text("model", "A model") + ": the scale of every head",
          text("conclusion", "How far the scale of each attention head is from the one that gives its scores unit "
                             "variance.")};
}

/// Where the page with the engine in it takes results.
constexpr std::string_view kPlace = R"(<script type="application/json" id="results">{}</script>)";

void want_d3() {
  if (!has_html()) base::refuse("html: this rootdk was built without D3, which its pages need (Debian: node-d3)");
}

}  // namespace

bool has_html() { return !kPageAfter.empty(); }

std::string html(std::string_view results_json) {
  want_d3();
  const AnyJson results = checked_results(results_json);
  return around(kPageBefore, about_results(results), results_json, kPageAfter);
}

bool is_laboratory(std::string_view page) { return page.find(kPlace) != page.npos; }

std::string laboratory_html(std::string_view page, std::string_view results_json) {
  if (!is_laboratory(page))
    base::refuse("page: has no place for results; rootdk.html was wanted, as ./run site makes it");
  checked_results(results_json);
  const std::size_t inside = page.find(kPlace) + kPlace.find("{}");
  std::string out(page.substr(0, inside));
  return out.append(fit_for_script(results_json)).append(page.substr(inside + 2));
}

std::string audit_html(std::string_view audit_json) {
  want_d3();
  const AnyJson audit = parsed("audit_json", audit_json);
  check_audit(audit);
  return around(kAuditPageBefore, about_audit(audit), audit_json, kAuditPageAfter);
}

}  // namespace rootdk::report
