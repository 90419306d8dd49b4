// Tiles through the engine; what the engine cannot know of a part (length rules, sinks, ties) is done here.
#include "distributed/parts.h"

#include <cmath>
#include <limits>

#include "base/row_state.h"
#include "base/row_tensors.h"
#include "base/visibility.h"
#include "distributed/rows.h"

namespace rootdk::distributed {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

ConstTensor widened(const Whole& whole, const ConstTensor& t, Block& block) {
  if (!t.present() || t.dtype == whole.work()) return t;
  block = Block(whole.meter, whole.work(), t.shape);
  copy(t, block.tensor());
  return block.tensor();
}

/// The length rule's part of c for a query of the whole sequence; 1 where there is none.
double length_factor(const Whole& whole, std::int64_t b, std::int64_t h, std::int64_t query) {
  const Scale& scale = whole.problem.scale;
  if (!scale.by_row()) return 1;
  return scale.length_factor(h, base::visible_keys(whole.problem.mask, whole.shape, b, query).scale_row());
}

template <class Visit>  // (batch, head, place here, query of the whole sequence)
void each_query(const Whole& whole, const Pieces& pieces, const Visit& visit) {
  for (std::int64_t b = 0; b < whole.shape.batch; ++b)
    for (std::int64_t h = 0; h < whole.shape.heads_q; ++h) {
      std::int64_t place = 0;
      for (const Piece& piece : pieces)
        for (std::int64_t query = piece.begin; query < piece.end; ++query) visit(b, h, place++, query);
    }
}

/// A part sees only some of a row's keys, so a rule that counts them goes into q.
ConstTensor scaled_q(const Whole& whole, const Pieces& queries, const ConstTensor& q, Block& block) {
  if (!whole.problem.scale.by_row()) return widened(whole, q, block);
  block = Block(whole.meter, whole.work(), q.shape);
  each_query(whole, queries, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t query) {
    const double factor = length_factor(whole, b, h, query);
    for (std::int64_t d = 0; d < q.shape[kDim]; ++d)
      base::write(block.tensor(), b, h, i, d, factor * base::read(q, b, h, i, d));
  });
  return block.tensor();
}

/// The problem of a tile and what it points to.
struct TileProblem {
  TileProblem(const Whole& whole, const Tile& tile, const HeadRun& heads, const Pieces& queries, StatsLevel stats)
      : mask(whole.problem.mask, tile), problem(whole.problem), shape(whole.shape) {
    shape.heads_q = heads.q_count, shape.heads_kv = heads.kv_count;
    shape.batch = tile.items.length(), shape.len_q = tile.queries.length(), shape.len_kv = tile.keys.length();
    shape.dtype = whole.work();
    problem.mask = mask.mask;
    const auto part = [&](const ConstTensor& t) {
      ConstTensor out = cut_broadcast(t, kBatch, tile.items.begin, shape.batch);
      out = cut_broadcast(out, kHeads, heads.q_begin, shape.heads_q);
      out = cut_broadcast(out, kLength, place_of(queries, tile.queries.begin), shape.len_q);
      return cut_broadcast(out, kDim, tile.keys.begin, shape.len_kv);
    };
    problem.mask.allowed = part(whole.problem.mask.allowed);
    problem.mask.bias = part(whole.problem.mask.bias);
    if (problem.mask.bias.present() && problem.mask.bias.dtype != DType::kF32)
      problem.mask.bias = widened(whole, problem.mask.bias, bias);
    const auto per_head = [&](std::span<const float>& values) {
      if (!values.empty())
        values = values.subspan(static_cast<std::size_t>(heads.q_begin), static_cast<std::size_t>(heads.q_count));
    };
    per_head(problem.mask.alibi_slopes), per_head(problem.scale.head_values);
    problem.scale.length = Scale::Length::kNone, problem.scale.head_gains = problem.scale.head_offsets = {};
    problem.sink = {};
    problem.stats = stats;
    problem.stats_options = {};
    problem.stats_options.causes = false;
  }

  TileMask mask;
  Block bias;
  Problem problem;
  Shape shape;
};

template <class Void>
BasicTensor<Void> tile_keys(const BasicTensor<Void>& t, const Tile& tile, const HeadRun& heads, const Pieces& keys) {
  const auto run = cut(cut(t, kBatch, tile.items.begin, tile.items.length()), kHeads, heads.kv_begin, heads.kv_count);
  return cut(run, kLength, place_of(keys, tile.keys.begin), tile.keys.length());
}

template <class Void>
BasicTensor<Void> tile_rows(const BasicTensor<Void>& t, const Tile& tile, const HeadRun& heads, const Pieces& queries) {
  const auto run = cut(cut(t, kBatch, tile.items.begin, tile.items.length()), kHeads, heads.q_begin, heads.q_count);
  return cut(run, kLength, place_of(queries, tile.queries.begin), tile.queries.length());
}

/// merge keeps the place of a maximum that comes first; parts come in any order, and the lowest key is wanted.
void merge_part(const Outputs& into, const Outputs& part, std::int64_t first_key) {
  struct Place {
    Tensor RowTensors::*max, RowTensors::*argmax;
  };
  std::vector<std::pair<std::array<std::int64_t, 3>, std::pair<Tensor, double>>> ties;
  for (const Place& place :
       {Place{&RowTensors::raw_max, &RowTensors::raw_argmax}, Place{&RowTensors::score_max, &RowTensors::score_argmax}})
    each_row(into.lse.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const double mine = base::read(into.rows.*place.argmax, b, h, i, 0),
                   theirs = base::read(part.rows.*place.argmax, b, h, i, 0);
      if (mine < 0 || theirs < 0 || theirs + static_cast<double>(first_key) > mine) return;
      if (base::read(into.rows.*place.max, b, h, i, 0) != base::read(part.rows.*place.max, b, h, i, 0)) return;
      ties.push_back({{b, h, i}, {into.rows.*place.argmax, theirs + static_cast<double>(first_key)}});
    });
  merge(into, part, first_key);
  for (const auto& [at, value] : ties) base::write(value.first, at[0], at[1], at[2], 0, value.second);
}

}  // namespace

std::vector<Tensor RowTensors::*> row_tensors() {
  std::vector<Tensor RowTensors::*> out;
  for (const base::BasicRowTensor& row : base::kBasicRowTensors) out.push_back(row.tensor);
  for (const base::FullRowTensor& row : base::kFullRowTensors) out.push_back(row.tensor);
  return out;
}

RowBlocks::RowBlocks(const SharedMeter& meter, DType dtype, const Extents& shape) {
  for (Tensor RowTensors::*const row : row_tensors()) {
    blocks_.emplace_back(meter, dtype, shape);
    tensors_.*row = blocks_.back().tensor();
  }
}

ForwardParts::ForwardParts(const Whole& whole, const Pieces& queries, const ConstTensor& q)
    : whole_(whole), queries_(queries), q_(scaled_q(whole, queries, q, widened_q_)) {
  const Extents rows = {q.shape[kBatch], q.shape[kHeads], q.shape[kLength], 1};
  o_ = Block(whole.meter, whole.work(), {rows[0], rows[1], rows[2], whole.shape.dim_v});
  lse_ = Block(whole.meter, whole.work(), rows);
  if (whole.problem.stats != StatsLevel::kNone) rows_ = RowBlocks(whole.meter, whole.work(), rows);
  begin_rows();
}

void ForwardParts::begin_rows() {
  const std::span<const float> sink = whole_.problem.sink;
  each_query(whole_, queries_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t query) {
    const double z = sink.empty() ? kNothing : static_cast<double>(sink[static_cast<std::size_t>(h)]);
    base::write(lse_.tensor(), b, h, i, 0, z);
    const RowTensors& rows = rows_.tensors();
    if (!rows.raw_max.present()) return;
    const double mass = sink.empty() ? 0 : 1;
    base::RowRecord row{kNothing, kNothing, 0, z, base::is_query(whole_.problem.mask, whole_.shape, b, query) ? 0 : -1,
                        true};
    base::FullRecord full{{}, {}, 0, mass, mass, mass};  // all of the probability is the sink's
    base::write(rows.raw_max, b, h, i, 0, row.raw_max);
    base::write(rows.score_max, b, h, i, 0, row.score_max);
    base::write(rows.p_max, b, h, i, 0, row.p_max);
    for (const base::FullRowTensor& t : base::kFullRowTensors)
      base::write(rows.*t.tensor, b, h, i, 0, t.value(row, full));
  });
}

void ForwardParts::add(const Pieces& keys, const ConstTensor& k, const ConstTensor& v, const Poll& poll) {
  for (const Tile& tile : tiles_of(whole_.problem.mask, whole_.shape, queries_, keys))
    for (const HeadRun& heads : whole_.heads) {
      run(tile, heads, tile_keys(k, tile, heads, keys), tile_keys(v, tile, heads, keys));
      if (poll) poll();
    }
}

void ForwardParts::run(const Tile& tile, const HeadRun& heads, const ConstTensor& k, const ConstTensor& v) {
  const bool stats = whole_.problem.stats != StatsLevel::kNone;
  const TileProblem part(whole_, tile, heads, queries_, stats ? StatsLevel::kFull : StatsLevel::kNone);
  const Shape& s = part.shape;
  Block wide_k, wide_v;
  const Inputs inputs{tile_rows(q_, tile, heads, queries_), widened(whole_, k, wide_k), widened(whole_, v, wide_v)};
  const Extents rows = {s.batch, s.heads_q, s.len_q, 1};
  const Block o(whole_.meter, s.dtype, {s.batch, s.heads_q, s.len_q, s.dim_v}), lse(whole_.meter, s.dtype, rows);
  RowBlocks full;
  if (stats) full = RowBlocks(whole_.meter, s.dtype, rows);
  const Outputs outputs{o.tensor(), lse.tensor(), full.tensors()};
  {
    const Plan plan = make_plan(part.problem, s, Pass::kForward, whole_.machine);
    const Memory workspace(whole_.meter, static_cast<std::int64_t>(plan.workspace_bytes));
    forward(plan, inputs, outputs, workspace.span());
  }
  Outputs into{tile_rows(o_.tensor(), tile, heads, queries_), tile_rows(lse_.tensor(), tile, heads, queries_)};
  if (!stats) return merge(into.o, into.lse, outputs.o, outputs.lse);
  for (Tensor RowTensors::*const row : row_tensors())
    into.rows.*row = tile_rows(rows_.tensors().*row, tile, heads, queries_);
  merge_part(into, outputs, tile.keys.begin);
}

Outputs ForwardParts::result() const { return {o_.tensor(), lse_.tensor(), rows_.tensors()}; }

BackwardParts::BackwardParts(const Whole& whole, const Pieces& queries, const BackwardInputs& in)
    : whole_(whole), queries_(queries), in_(in), plain_q_(in.q), sums_(whole.shape.heads_q) {
  in_.q = scaled_q(whole, queries, in.q, widened_q_);
  in_.o = widened(whole, in.o, widened_o_);
  in_.d_o = widened(whole, in.d_o, widened_d_o_);
  d_q_ = Block(whole.meter, whole.work(), in.q.shape);
}

void BackwardParts::add(const Pieces& keys, const ConstTensor& k, const ConstTensor& v, const Tensor& d_k,
                        const Tensor& d_v, const Poll& poll) {
  for (const Tile& tile : tiles_of(whole_.problem.mask, whole_.shape, queries_, keys))
    for (const HeadRun& heads : whole_.heads) {
      const auto part = [&](const auto& t) { return tile_keys(t, tile, heads, keys); };
      run(tile, heads, part(k), part(v), part(d_k), part(d_v));
      if (poll) poll();
    }
}

void BackwardParts::run(const Tile& tile, const HeadRun& heads, const ConstTensor& k, const ConstTensor& v,
                        const Tensor& d_k, const Tensor& d_v) {
  const TileProblem part(whole_, tile, heads, queries_, StatsLevel::kNone);
  const Shape& s = part.shape;
  Block wide_k, wide_v;
  const BackwardInputs inputs{tile_rows(in_.q, tile, heads, queries_),
                              widened(whole_, k, wide_k),
                              widened(whole_, v, wide_v),
                              tile_rows(in_.o, tile, heads, queries_),
                              tile_rows(in_.lse, tile, heads, queries_),
                              tile_rows(in_.d_o, tile, heads, queries_),
                              tile_rows(in_.d_lse, tile, heads, queries_)};
  const Block to_q(whole_.meter, s.dtype, inputs.q.shape), to_k(whole_.meter, s.dtype, k.shape),
      to_v(whole_.meter, s.dtype, v.shape);
  std::vector<float> d_scale(static_cast<std::size_t>(heads.q_count));
  {
    const Plan plan = make_plan(part.problem, s, Pass::kBackward, whole_.machine);
    const Memory workspace(whole_.meter, static_cast<std::int64_t>(plan.workspace_bytes));
    backward(plan, inputs, {to_q.tensor(), to_k.tensor(), to_v.tensor(), d_scale}, workspace.span());
  }
  rootdk::distributed::add(to_q.tensor(), tile_rows(d_q_.tensor(), tile, heads, queries_));
  rootdk::distributed::add(to_k.tensor(), d_k);
  rootdk::distributed::add(to_v.tensor(), d_v);
  for (std::size_t h = 0; h < d_scale.size(); ++h)
    sums_.scale[static_cast<std::size_t>(heads.q_begin) + h] += static_cast<double>(d_scale[h]);
}

HeadSums BackwardParts::sums() {
  const Problem& problem = whole_.problem;
  Scale length = problem.scale;  // the length rule alone
  length.rule = Scale::Rule::kNone, length.yarn = 1;
  const bool by_row = problem.scale.by_row();
  each_query(whole_, queries_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t query) {
    const auto head = static_cast<std::size_t>(h);
    if (by_row) {
      const ScaleRow row = base::visible_keys(problem.mask, whole_.shape, b, query).scale_row();
      double along = 0;                                        // dL/d (the length rule's factor)
      for (std::int64_t d = 0; d < plain_q_.shape[kDim]; ++d)  // a row that sees nothing may hold anything
        if (const double slope = base::read(d_q_.tensor(), b, h, i, d); slope != 0)
          along += base::read(plain_q_, b, h, i, d) * slope;
      const Scale::Slopes slopes = length.slopes(h, whole_.shape.dim_qk, row);
      sums_.gain[head] += along * slopes.log_n_gain, sums_.offset[head] += along * slopes.log_n_offset;
    }
    const double lse = base::read(in_.lse, b, h, i, 0);
    if (!problem.sink.empty() && lse != kNothing) {
      double delta = in_.d_lse.present() ? -base::read(in_.d_lse, b, h, i, 0) : 0;  // D = dO·O − dLSE
      for (std::int64_t d = 0; d < in_.o.shape[kDim]; ++d)
        if (const double o = base::read(in_.o, b, h, i, d); o != 0) delta += o * base::read(in_.d_o, b, h, i, d);
      sums_.sink[head] -= std::exp(static_cast<double>(problem.sink[head]) - lse) * delta;
    }
  });
  return sums_;
}

void BackwardParts::write(const Tensor& d_q) const {
  if (!d_q.present()) return;
  const bool by_row = whole_.problem.scale.by_row();
  each_query(whole_, queries_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t query) {
    const double factor = by_row ? length_factor(whole_, b, h, query) : 1;
    for (std::int64_t d = 0; d < d_q.shape[kDim]; ++d)
      base::write(d_q, b, h, i, d, factor * base::read(d_q_.tensor(), b, h, i, d));
  });
}

}  // namespace rootdk::distributed
