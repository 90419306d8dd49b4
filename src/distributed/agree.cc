// A header of each rank: numbers that must be the same, digests of arrays that must be, and what is wrong, if anything
// is.
#include "distributed/agree.h"

#include <array>
#include <cstring>
#include <map>

#include "base/refuse.h"
#include "base/visibility.h"
#include "distributed/parts.h"
#include "distributed/rows.h"

namespace rootdk::distributed {

namespace {

using base::refuse;

enum class Shown : std::uint8_t { kNumber, kDType, kWay, kNothing };

struct Field {
  const char* name;
  Shown shown = Shown::kNumber;
};

constexpr Field kFields[] = {{"the call (forward or backward)", Shown::kNothing},
                             {"dtype", Shown::kDType},
                             {"batch"},
                             {"heads_q"},
                             {"heads_kv"},
                             {"dim_qk"},
                             {"dim_v"},
                             {"the way", Shown::kWay},
                             {"ranks_per_node"},
                             {"the level of statistics", Shown::kNothing},
                             {"whether lse is wanted", Shown::kNothing},
                             {"whether d_lse is there", Shown::kNothing},
                             {"whether forward kept notes", Shown::kNothing},
                             {"whether mask.allowed is there", Shown::kNothing},
                             {"whether mask.bias is there", Shown::kNothing},
                             {"the layout", Shown::kNothing},
                             {"the scale", Shown::kNothing},
                             {"the mask", Shown::kNothing},
                             {"the packing of documents", Shown::kNothing},
                             {"soft-cap, transform or sink", Shown::kNothing},
                             {"an option of statistics", Shown::kNothing}};
constexpr std::size_t kFieldCount = std::size(kFields);

struct Header {
  std::array<std::int64_t, kFieldCount> fields;
  std::array<char, 256> wrong;  ///< empty, or why this rank cannot go on
};

/// FNV-1a over plain data.
class Digest {
 public:
  template <class T>
  Digest& add(const T& x) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    return bytes(&x, sizeof x);
  }
  template <class T>
  Digest& add(std::span<const T> x) {
    add(x.size());
    return bytes(x.data(), x.size_bytes());
  }
  std::int64_t value() const { return static_cast<std::int64_t>(hash_ >> 1); }

 private:
  Digest& bytes(const void* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3ull;
    return *this;
  }
  std::uint64_t hash_ = 0xCBF29CE484222325ull;
};

std::int64_t layout_digest(const Share& share) {
  Digest digest;
  for (const Layout* layout : {&share.queries, &share.keys})
    for (const Pieces& pieces : layout->pieces) {
      digest.add(pieces.size());
      for (const Piece& piece : pieces) digest.add(piece.begin).add(piece.end);
    }
  return digest.value();
}

std::int64_t scale_digest(const Scale& s) {
  Digest digest;
  digest.add(s.rule).add(s.value).add(s.head_values).add(s.sigma_q).add(s.sigma_k).add(s.yarn).add(s.length);
  return digest.add(s.log_n_gain).add(s.log_n_offset).add(s.head_gains).add(s.head_offsets).value();
}

std::int64_t mask_digest(const Mask& m) {
  const Window window = m.window.value_or(Window{});
  Digest digest;
  digest.add(m.causal).add(m.diagonal.kind).add(m.diagonal.offset).add(window.left).add(window.right);
  for (const base::PerItem& field : base::kPerItem) digest.add(field.of(m));
  return digest.add(m.alibi_slopes).value();
}

Header header_of(const CallArguments& a) {
  const Problem& p = a.problem;
  const Documents documents = p.mask.documents.value_or(Documents{});
  const StatsOptions& options = p.stats_options;
  const ConstTensor &q = a.inputs.q, &k = a.inputs.k, &v = a.inputs.v;
  return {{a.backward != nullptr,
           static_cast<std::int64_t>(q.dtype),
           q.shape[kBatch],
           q.shape[kHeads],
           k.shape[kHeads],
           q.shape[kDim],
           v.shape[kDim],
           static_cast<std::int64_t>(a.share.way),
           a.share.ranks_per_node,
           static_cast<std::int64_t>(p.stats),
           a.outputs && a.outputs->lse.present(),
           a.backward && a.backward->d_lse.present(),
           a.kept,
           p.mask.allowed.present(),
           p.mask.bias.present(),
           layout_digest(a.share),
           scale_digest(p.scale),
           mask_digest(p.mask),
           Digest().add(documents.q_starts).add(documents.kv_starts).add(documents.items).value(),
           Digest().add(p.soft_cap.value_or(0)).add(p.transform.present()).add(p.sink).value(),
           Digest().add(options.by_keys).add(options.first_query).value()},
          {}};
}

void check_tensor(const char* name, const ConstTensor& t, DType dtype, const Extents& shape) {
  if (!t.present() && shape[0] * shape[1] * shape[2] * shape[3] > 0) refuse("{}: absent, but wanted", name);
  if (t.dtype != dtype) refuse("{}: dtype is {}, but {} is wanted", name, name_of(t.dtype), name_of(dtype));
  for (std::size_t axis = 0; axis < 4; ++axis)
    if (t.shape[axis] != shape[axis])
      refuse("{}: axis {} is {}, but {} is wanted", name, axis, t.shape[axis], shape[axis]);
}

void check_if_present(const char* name, const ConstTensor& t, DType dtype, const Extents& shape) {
  if (t.present()) check_tensor(name, t, dtype, shape);
}

void check_share(const Share& share, int ranks, int rank, const Shape& local) {
  for (const Layout* layout : {&share.queries, &share.keys}) {
    layout->check();
    if (layout->ranks() != ranks) refuse("layout: of {} ranks, but there are {}", layout->ranks(), ranks);
  }
  if (local.len_q != share.queries.length(rank))
    refuse("q: {} rows, but the layout gives this rank {}", local.len_q, share.queries.length(rank));
  if (local.len_kv != share.keys.length(rank))
    refuse("k: {} rows, but the layout gives this rank {}", local.len_kv, share.keys.length(rank));
  if (share.way == Way::kTwoLevels && (share.ranks_per_node < 1 || ranks % share.ranks_per_node != 0))
    refuse("ranks_per_node: {}, which does not divide the {} ranks", share.ranks_per_node, ranks);
  if (share.threads < 0) refuse("threads: {}, but at least 0 is wanted (0: as many as there are)", share.threads);
}

void check_problem(const CallArguments& a, const Shape& shape, std::int64_t rows) {
  const Problem& p = a.problem;
  if (p.dropout.p != 0) refuse("dropout: {}, but attention over ranks has none", p.dropout.p);
  if (p.paged) refuse("paged: K and V of attention over ranks are not paged");
  if (p.stats_options.sample != 1)
    refuse("stats.sample: {}, but over ranks statistics are of every row", p.stats_options.sample);
  if (p.stats_options.gaps || p.stats_options.key_mass)
    refuse("stats.{}: not known over ranks, where no pass sees all keys of a row",
           p.stats_options.gaps ? "gaps" : "key_mass");
  if (p.stats_options.first_query != 0)
    refuse("stats.first_query: {}, but over ranks the layout numbers queries", p.stats_options.first_query);
  Problem whole = p;
  for (const auto& [name, t] : {std::pair{"mask", &whole.mask.allowed}, {"bias", &whole.mask.bias}}) {
    if (!t->present()) continue;
    if (t->shape[kLength] != 1) {
      if (a.share.way == Way::kHeads || a.share.way == Way::kTwoLevels)
        refuse("{}: has a row for each query, which does not travel with heads; take a ring or all_gather", name);
      if (t->shape[kLength] != rows) refuse("{}: {} rows, but this rank has {} queries", name, t->shape[kLength], rows);
    }
    *t = cut(*t, kLength, 0, 1);  // columns and heads are as in the whole problem
  }
  make_plan(whole, shape);
  constexpr std::int64_t kFarthest = std::int64_t{1} << 29;  // of a diagonal that the engine takes
  if (p.mask.diagonal.kind == Diagonal::Kind::kAt &&
      std::abs(p.mask.diagonal.offset) + std::max(shape.len_q, shape.len_kv) > kFarthest)
    refuse("diagonal: offset {} is too far for {} keys", p.mask.diagonal.offset, shape.len_kv);
}

void check_outputs(const CallArguments& a, const Shape& s, std::int64_t len_q, std::int64_t len_kv) {
  const DType rows = s.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Extents row_shape = {s.batch, s.heads_q, len_q, 1}, o_shape = {s.batch, s.heads_q, len_q, s.dim_v};
  if (a.outputs) {
    check_tensor("o", a.outputs->o, s.dtype, o_shape);
    check_if_present("lse", a.outputs->lse, rows, row_shape);
    if (a.outputs->key_mass.present()) refuse("key_mass: a tensor is given, but it is not known over ranks");
    const bool any = a.outputs->rows.raw_max.present();
    for (Tensor RowTensors::*const row : row_tensors()) {
      const Tensor& t = a.outputs->rows.*row;
      if (t.present() != any) refuse("rows: some are given and some are not, but over ranks it is all or none");
      check_if_present("rows", t, rows, row_shape);
    }
    if (any && a.problem.stats == StatsLevel::kNone) refuse("rows: wanted, but the problem asks for no statistics");
    return;
  }
  check_tensor("o", a.backward->o, s.dtype, o_shape);
  check_tensor("lse", a.backward->lse, rows, row_shape);
  check_tensor("d_o", a.backward->d_o, s.dtype, o_shape);
  check_if_present("d_lse", a.backward->d_lse, rows, row_shape);
  check_if_present("d_q", a.gradients->d_q, s.dtype, {s.batch, s.heads_q, len_q, s.dim_qk});
  check_if_present("d_k", a.gradients->d_k, s.dtype, {s.batch, s.heads_kv, len_kv, s.dim_qk});
  check_if_present("d_v", a.gradients->d_v, s.dtype, {s.batch, s.heads_kv, len_kv, s.dim_v});
  if (a.gradients->d_bias.present()) refuse("d_bias: wanted, but attention over ranks has no gradient of a bias");
  for (const auto& [name, values] : {std::pair{"d_scale", a.gradients->d_scale},
                                     {"d_sink", a.gradients->d_sink},
                                     {"d_log_n_gain", a.gradients->d_log_n_gain},
                                     {"d_log_n_offset", a.gradients->d_log_n_offset}})
    if (!values.empty() && static_cast<std::int64_t>(values.size()) != s.heads_q)
      refuse("{}: {} values, but there are {} query heads", name, values.size(), s.heads_q);
}

Shape checked(const CallArguments& a, int ranks, int rank) {
  const Shape local = shape_of(a.inputs);
  check_share(a.share, ranks, rank, local);
  Shape shape = local;
  shape.len_q = a.share.queries.length(), shape.len_kv = a.share.keys.length();
  check_problem(a, shape, local.len_q);
  check_outputs(a, shape, local.len_q, local.len_kv);
  return shape;
}

std::string shown(const Field& field, std::int64_t value) {
  if (field.shown == Shown::kDType) return rootdk::name_of(static_cast<DType>(value));
  if (field.shown == Shown::kWay) return name_of(static_cast<Way>(value));
  return std::to_string(value);
}

std::string difference(const Field& field, std::int64_t value, std::int64_t most) {
  if (field.shown == Shown::kNothing) return fmt::format("{} is not the same as", field.name);
  return fmt::format("{} is {}, but {}", field.name, shown(field, value), shown(field, most));
}

/// The first rank whose number is not the one that most have.
void compare(const std::vector<Header>& headers) {
  for (std::size_t field = 0; field < kFieldCount; ++field) {
    std::map<std::int64_t, int> votes;
    for (const Header& header : headers) ++votes[header.fields[field]];
    if (votes.size() == 1) continue;
    auto most = votes.begin();
    for (auto vote = votes.begin(); vote != votes.end(); ++vote)
      if (vote->second > most->second) most = vote;
    for (std::size_t rank = 0; rank < headers.size(); ++rank)
      if (const std::int64_t value = headers[rank].fields[field]; value != most->first)
        throw RankError(ErrorCode::kInvalidArgument, static_cast<int>(rank),
                        fmt::format("rank {}: {} on {} of {} ranks", rank,
                                    difference(kFields[field], value, most->first), most->second, headers.size()));
  }
}

}  // namespace

Shape agree(const Group& all, const CallArguments& arguments, const SharedMeter& meter) {
  Header mine = header_of(arguments);
  Shape shape;
  try {
    shape = checked(arguments, all.size(), all.me);
  } catch (const std::exception& error) {
    std::strncpy(mine.wrong.data(), error.what(), mine.wrong.size() - 1);
  }
  const Message message = make_message(meter, sizeof mine);
  std::memcpy(message->data(), &mine, sizeof mine);
  const std::vector<std::int64_t> sizes(all.members.size(), sizeof mine);
  std::vector<Header> headers;
  for (const Message& one : all.all(Channel::kControl, message, sizes, meter)) {
    headers.emplace_back();
    std::memcpy(&headers.back(), one->data(), sizeof mine);
  }
  for (std::size_t rank = 0; rank < headers.size(); ++rank)
    if (headers[rank].wrong[0])
      throw RankError(ErrorCode::kInvalidArgument, static_cast<int>(rank),
                      fmt::format("rank {}: {}", rank, headers[rank].wrong.data()));
  compare(headers);
  return shape;
}

}  // namespace rootdk::distributed
