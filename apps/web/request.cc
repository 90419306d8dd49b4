// A request's JSON as the option texts that verbs read; every answer, also a refusal, is JSON.
#include "request.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/refuse.h"

namespace rootdk::app {

namespace {

using Json = nlohmann::json;

/// As the command line would have it: numbers to the same bits, lists with commas.
std::string text_of(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (!value.is_array()) base::refuse("{}: {}, but a number, a text or a list is wanted", name, value.dump());
  std::string out;
  for (const Json& element : value) out += (out.empty() ? "" : ",") + text_of(name, element);
  return out;
}

/// "--sigma-q" → "sigma_q"
std::string key_of(std::string name) {
  name.erase(0, name.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class RequestOptions final : public OptionList {
 public:
  explicit RequestOptions(const Json& args) : args_(args) {
    if (!args.is_object()) base::refuse("args: an object is wanted");
  }

  void add(Option option) override {
    if (option.name == "--json") return option.take("");
    for (std::size_t from = 0; from < option.name.size();) {
      const std::size_t to = std::min(option.name.find(',', from), option.name.size());
      const std::string name = option.name.substr(from, to - from), key = key_of(name);
      known_.insert(key);
      const auto found = args_.find(key);
      if (found != args_.end() && !found->is_null()) return give(option, name, *found);
      from = to + 1;
    }
    if (option.is == Option::Is::kArgument) base::refuse("{} is required", option.name);
  }

  void refuse_unknown(const std::string& verb) const {
    for (const auto& [key, value] : args_.items())
      if (!known_.contains(key)) base::refuse("'{}' is not expected; try rootdk {} --help", key, verb);
  }

 private:
  static void give(const Option& option, const std::string& name, const Json& value) {
    if (option.is == Option::Is::kFlag) {
      if (!value.is_boolean()) base::refuse("{}: {}, but true or false is wanted", name, value.dump());
      if (value.get<bool>()) option.take("");
    } else if (option.is == Option::Is::kList && value.is_array()) {
      for (const Json& element : value) option.take(text_of(name, element));
    } else {
      option.take(text_of(name, value));
    }
  }

  const Json& args_;
  std::set<std::string> known_;
};

void run(const std::vector<Verb>& verbs, std::string_view request) {
  const Json json = Json::parse(request);
  const std::string name = json.at("verb").get<std::string>();
  const auto verb = std::find_if(verbs.begin(), verbs.end(), [&](const Verb& v) { return v.name == name; });
  if (verb == verbs.end()) base::refuse("no subcommand '{}'; try rootdk --help", name);
  const Json args = json.value("args", Json::object());
  RequestOptions options(args);
  verb->declare(options);
  options.refuse_unknown(name);
  verb->run();
}

}  // namespace

std::string& answer() {
  static std::string text;
  return text;
}

const std::string& respond(const std::vector<Verb>& verbs, std::string_view request) noexcept {
  const auto complain = [](std::string line) {
    std::replace(line.begin(), line.end(), '\n', ' ');
    answer() = Json({{"error", line}}).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  answer().clear();
  try {
    run(verbs, request);
  } catch (const std::bad_alloc&) {
    complain("out of memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return answer();
}

}  // namespace rootdk::app
