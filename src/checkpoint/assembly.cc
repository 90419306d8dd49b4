// From path to directory, index or single file, then every tensor under its name, no name twice.
#include "checkpoint/assembly.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/directory.h"
#include "checkpoint/hints.h"
#include "checkpoint/index.h"
#include "checkpoint/text.h"

namespace rootdk::checkpoint {

namespace fs = std::filesystem;

namespace {

bool is_index(const fs::path& path) { return path.native().ends_with(".index.json"); }

// By ending; by the first bytes where that says nothing.
Format format_of(const Source& source) {
  const std::string ending = source.path().extension().string();
  if (ending == ".safetensors") return Format::kSafetensors;
  if (ending == ".gguf") return Format::kGguf;
  if (ending == ".npy") return Format::kNpy;
  if (ending == ".npz") return Format::kNpz;
  const std::string_view begin = source.text(0, std::min<std::uint64_t>(source.size(), 9));
  if (begin.starts_with("GGUF")) return Format::kGguf;
  if (begin.starts_with("\x93NUMPY")) return Format::kNpy;
  const bool zip = begin.starts_with("PK\x03\x04");  // as torch.save writes; before that it wrote the pickle itself
  if (is_pickle_name(source.path()) && (zip || begin.starts_with("\x80")))
    refuse("{}: {}", source.name(), how_to_convert(source.path()));
  if (zip) return Format::kNpz;
  if (begin.size() == 9 && begin[8] == '{') return Format::kSafetensors;
  source.refuse_at(0, "neither safetensors, GGUF, .npz nor .npy");
}

Contents contents_of(const std::shared_ptr<const Source>& source, Format format) {
  switch (format) {
    case Format::kSafetensors: return read_safetensors(*source);
    case Format::kGguf: return read_gguf(source);
    case Format::kNpy: return read_npy(*source);
    case Format::kNpz: break;
  }
  return read_npz(*source);
}

}  // namespace

std::shared_ptr<const Source> Checkpoint::Data::file(const std::string& name) const {
  const auto found = elsewhere.find(name);
  return found != elsewhere.end() ? found->second : open_in(directory, name, options);
}

const TensorInfo* Checkpoint::Data::find(std::string_view name) const {
  const auto less = [&](std::size_t tensor, std::string_view wanted) { return tensors[tensor].name < wanted; };
  const auto found = std::lower_bound(by_name.begin(), by_name.end(), name, less);
  return found == by_name.end() || tensors[*found].name != name ? nullptr : &tensors[*found];
}

const Deflated* Checkpoint::Data::packing(const TensorInfo& tensor) const {
  const auto& packed = deflated[static_cast<std::size_t>(&tensor - tensors.data())];
  return packed ? &*packed : nullptr;
}

Checkpoint Assembly::open(const fs::path& path, const OpenOptions& options, std::vector<Elsewhere> elsewhere) {
  Assembly assembly;
  Checkpoint::Data& data = *assembly.data_;
  data.options = options;
  std::error_code error;
  Choice choice;
  const bool directory = fs::is_directory(path, error) || (!elsewhere.empty() && !is_index(path));
  data.directory = directory ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::set<std::string> names;
  for (Elsewhere& file : elsewhere) {
    const std::string name = file.name;
    names.insert(name);
    data.elsewhere[name] = Source::elsewhere(data.directory / name, std::move(file));
  }
  if (directory) {
    choice = choose_files(path, std::move(names));
  } else {
    if (const std::string hint = how_to_download(path); !hint.empty() && !fs::exists(path, error))
      refuse("{}: no such file; {}", printable(path.native()), hint);
    if (!is_index(path)) {
      auto source = Source::open(path, options);
      const Format format = format_of(*source);
      assembly.add_all(std::move(source), format);
      return assembly.finish();
    }
    const auto index = data.elsewhere.find(path.filename().string());
    assembly.add_indexed(index != data.elsewhere.end() ? *index->second : *Source::open(path, options));
    return assembly.finish();
  }
  if (choice.index) assembly.add_indexed(*data.file(*choice.index));
  for (const std::string& name : choice.files) {
    auto source = data.file(name);
    const Format format = format_of(*source);
    assembly.add_all(std::move(source), format);
  }
  return assembly.finish();
}

Checkpoint Assembly::open_memory(std::string name, std::span<const std::byte> bytes, Format format) {
  Assembly assembly;
  assembly.add_all(Source::memory(std::move(name), bytes), format);
  return assembly.finish();
}

std::size_t Assembly::add_file(std::shared_ptr<const Source> source) {
  data_->files.push_back(source->path());
  data_->sources.push_back(std::move(source));
  return data_->files.size() - 1;
}

void Assembly::add(std::size_t file, StoredTensor tensor) {
  tensor.info.file = file;
  data_->tensors.push_back(std::move(tensor.info));
  data_->deflated.push_back(tensor.deflated);
}

void Assembly::add_all(std::shared_ptr<const Source> source, Format format) {
  Contents contents = contents_of(source, format);
  const std::size_t file = add_file(std::move(source));
  data_->format = format;
  if (file == 0) data_->metadata = std::move(contents.metadata);
  for (StoredTensor& tensor : contents.tensors) add(file, std::move(tensor));
}

void Assembly::add_indexed(const Source& index) {
  std::map<std::string, std::vector<IndexEntry>> by_file;
  for (IndexEntry& entry : read_index(index)) by_file[entry.file].push_back(std::move(entry));
  for (const auto& [name, entries] : by_file) {
    auto source = data_->file(name);
    Contents contents = read_safetensors(*source);
    const std::size_t file = add_file(std::move(source));
    if (file == 0) data_->metadata = std::move(contents.metadata);
    std::set<std::string_view> wanted;
    for (const IndexEntry& entry : entries) wanted.insert(entry.tensor);
    for (StoredTensor& tensor : contents.tensors)
      if (wanted.erase(tensor.info.name) > 0) add(file, std::move(tensor));
    for (const IndexEntry& entry : entries)
      if (wanted.contains(entry.tensor))
        index.refuse_at(entry.at, "tensor {} is said to be in {}, which does not have it", in_quotes(entry.tensor),
                        in_quotes(name));
  }
}

Checkpoint Assembly::finish() {
  Checkpoint::Data& data = *data_;
  data.by_name.resize(data.tensors.size());
  std::iota(data.by_name.begin(), data.by_name.end(), std::size_t{0});
  const auto name = [&](std::size_t tensor) -> const std::string& { return data.tensors[tensor].name; };
  std::sort(data.by_name.begin(), data.by_name.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(std::string_view(name(a)), a) < std::pair(std::string_view(name(b)), b);
  });
  for (std::size_t i = 1; i < data.by_name.size(); ++i) {
    const std::size_t one = data.by_name[i - 1], two = data.by_name[i];
    if (name(one) != name(two)) continue;
    const TensorInfo& again = data.tensors[two];
    data.sources[again.file]->refuse_at(again.offset, "tensor {} is here and in {}, too", in_quotes(again.name),
                                        data.sources[data.tensors[one].file]->name());
  }
  return Checkpoint(data_);
}

}  // namespace rootdk::checkpoint
