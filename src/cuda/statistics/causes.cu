// Q and K are read once more, in one pass: sums of every component over runs of rows, then of the runs, in a fixed
// order. f32 adds up a few rows about one of the same head, so that digits stay where the mean is large, and double
// takes over between them. Rows that are not finite are left out: they show in the sums of their run, which is then
// added up row by row. So are queries that see nothing and keys that nothing sees: causal masks, windows and lengths
// leave one run of those that do, known beforehand; documents, boolean masks and biases leave any, which are marked
// first.
#include "cuda/statistics/causes.h"

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/rows.cuh"

namespace rootdk::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRunRows = 512;
constexpr int kFewRows = 8;  ///< that f32 adds up
constexpr int kMostSlices = kRunRows / kFewRows;
constexpr int kHeadThreads = 512;  ///< for the sums of a head's runs, and the rows of one of them

/// Neighbouring elements of a row, loaded at once.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Elements {
  T x[kCount];
};

/// The rows of one head of Q or K.
template <class T>
struct HeadRows {
  const ProblemView& p;
  const View& t;
  bool paged;
  std::int64_t b, h, begin, length;  ///< rows are numbered from `begin`
  const T* first;
  const std::uint8_t* seen;        ///< where a key is not, it does not count; null: all do
  const base::RowRecord* records;  ///< likewise of queries

  __device__ HeadRows(const ForwardView& f, const CausesMemory& memory, bool keys, std::int64_t head)
      : p(f.p),
        t(keys ? f.k : f.q),
        paged(keys && f.p.pages),
        b(head / (keys ? p.heads_kv : p.heads_q)),
        h(head % (keys ? p.heads_kv : p.heads_q)),
        first(reinterpret_cast<const T*>(t.data) + (paged ? 0 : at(t, b, h, 0))),
        seen(keys && memory.seen ? memory.seen + head * p.len_kv : nullptr),
        records(!keys && memory.seen ? f.records + head * p.len_q : nullptr) {
    begin = 0, length = keys ? p.len_kv : p.len_q;
    if (!memory.seen) {  // no document, boolean mask or bias
      const base::Seen runs = base::seen_of(p, b);
      const base::SpanOf<std::int64_t> run = keys ? runs.keys : runs.queries;
      begin = run.begin, length = run.end - run.begin;
    }
    if (!paged) first += begin * t.strides[2];
  }

  __device__ const T* row(std::int64_t i) const {
    return first + (paged ? key_offset(p, t, b, h, begin + i) : i * t.strides[2]);
  }

  __device__ bool counts(std::int64_t i) const { return seen ? seen[i] != 0 : records ? records[i].visible > 0 : true; }

  __device__ float value(const T* of_row, std::int64_t d) const { return widen(of_row[d * t.strides[3]]); }

  /// A row that sums can be about: the one in the middle (the first is unlike the others in many models), or where that
  /// is not finite or does not count the one after a quarter, an eighth, a sixteenth; null if none of them will do. All
  /// threads of a block.
  __device__ const T* reference() const {
#pragma unroll 1
    for (int parts = 2; parts <= 16 && length > 0; parts *= 2) {
      const T* found = row(length / parts);
      bool finite = counts(length / parts);
      for (std::int64_t d = threadIdx.x; d < p.dim_qk; d += blockDim.x) finite = finite && isfinite(value(found, d));
      if (__syncthreads_and(finite)) return found;
    }
    return nullptr;
  }
};

/// How a block's threads lie over the rows and columns of a run: each has some neighbouring columns, of every so many
/// rows.
template <int kCount>
struct Layout {
  int groups, width, slices, slice,
      place;  ///< groups of columns; how many at a time; of each, so many threads; which this is, and its group's place

  __device__ explicit Layout(std::int64_t dim)
      : groups(static_cast<int>((dim + kCount - 1) / kCount)),
        width(min(groups, kThreads)),
        slices(min(kThreads / width, kMostSlices)),
        slice(static_cast<int>(threadIdx.x) / width),
        place(static_cast<int>(threadIdx.x) % width) {}
};

/// One thread's sums over rows, about a reference.
template <int kCount>
struct Sums {
  double columns[kCount] = {}, squares = 0;
  int rows = 0;
};

/// Adds kRows rows, so far apart. Anything that is not finite, or too large for f32, shows in `squares`.
template <int kRows, class T, int kCount>
__device__ __forceinline__ void add_rows(const T* first, std::int64_t apart, const float (&reference)[kCount],
                                         Sums<kCount>& sums) {
  Elements<T, kCount> rows[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n) rows[n] = *reinterpret_cast<const Elements<T, kCount>*>(first + n * apart);
  float columns[kCount] = {}, squares[kCount] = {}, square = 0;
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      const float off = widen(rows[n].x[x]) - reference[x];
      columns[x] += off;
      squares[x] = fmaf(off, off, squares[x]);
    }
  }
#pragma unroll
  for (int x = 0; x < kCount; ++x) sums.columns[x] += static_cast<double>(columns[x]), square += squares[x];
  sums.squares += static_cast<double>(square);
  sums.rows += kRows;
}

/// Sums over a block's threads, for all of them.
template <int kBlockThreads, int kCount>
__device__ void block_sum(double (&x)[kCount]) {
  __shared__ double parts[kCount][kBlockThreads / 32];
  for (double& sum : x) sum = warp_sum(sum);
  __syncthreads();
  for (int n = 0; n < kCount && threadIdx.x % 32 == 0; ++n) parts[n][threadIdx.x / 32] = x[n];
  __syncthreads();
  for (int n = 0; n < kCount; ++n) {
    x[n] = 0;
    for (const double part : parts[n]) x[n] += part;
  }
}

/// Marks the keys that a row sees; a warp takes a row, and what rows before it have marked it need not look at.
__global__ void __launch_bounds__(kThreads)
    mark_seen(const __grid_constant__ ForwardView f, std::uint8_t* seen, std::int64_t rows) {
  const ProblemView& p = f.p;
  const int lane = threadIdx.x % 32;
  const bool dense = p.allowed.data || p.bias.data;
  for (std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * (kThreads / 32)) {
    const std::int64_t b = row / p.len_q / p.heads_q, h = row / p.len_q % p.heads_q, i = row % p.len_q;
    const QueryRow run = visible_keys(p, b, i);
    std::uint8_t* of_head = seen + (b * p.heads_kv + h / p.group) * p.len_kv;
    std::int64_t begin = run.begin;
    if (!dense && i > 0) {
      const QueryRow before = visible_keys(p, b, i - 1);
      if (before.begin < before.end && before.begin <= run.begin) begin = max(begin, before.end);
    }
    for (std::int64_t j = begin + lane; j < run.end; j += 32) {
      if (of_head[j]) continue;
      if (p.allowed.data && p.allowed.data[at(p.allowed, b, h, i, j)] == 0) continue;
      if (p.bias.data && read(p.bias, at(p.bias, b, h, i, j)) == -kInfinityF) continue;
      of_head[j] = 1;
    }
  }
}

/// A block takes a run of rows. It may run beside the kernels before it (programmatic dependent launch): of what they
/// write it needs only the problem's arrays, and those were there before the first kernel of attention, which is an
/// ordinary launch.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads, 3)
    sum_runs(const __grid_constant__ ForwardView f, const __grid_constant__ CausesMemory memory, std::int64_t runs_of_q,
             std::int64_t all_runs) {
  __shared__ double parts[kThreads][kCount];
  const std::int64_t dim = f.p.dim_qk;
  const Layout<kCount> at(dim);
  for (std::int64_t task = blockIdx.x; task < all_runs; task += gridDim.x) {
    const bool keys = task >= runs_of_q;
    const RunSums& out = keys ? memory.k : memory.q;
    const std::int64_t run = keys ? task - runs_of_q : task;
    const HeadRows<T> rows(f, memory, keys, run / out.runs);
    const std::int64_t begin = run % out.runs * kRunRows, end = min(rows.length, begin + kRunRows);
    bool all_count = true;
    for (std::int64_t i = begin + threadIdx.x; i < end && memory.seen; i += kThreads)
      all_count = all_count && rows.counts(i);
    if (memory.seen && !__syncthreads_and(all_count)) {  // row by row, then
      if (threadIdx.x == 0) out.squares[run] = {__longlong_as_double(0x7ff8000000000000ll), 0};
      continue;
    }
    const T* about = rows.reference();
    double totals[2] = {};  // squares, rows
    for (int before = 0; before < at.groups; before += at.width) {
      const int group = before + at.place;
      const bool works = at.slice < at.slices && group < at.groups;
      const std::int64_t column = std::int64_t{group} * kCount;
      float reference[kCount] = {};
      for (int x = 0; x < kCount && works && about; ++x) reference[x] = rows.value(about, column + x);
      Sums<kCount> sums;
      std::int64_t i = works ? begin + at.slice : end;
      const T* place = rows.paged ? rows.first : rows.row(i) + column * rows.t.strides[3];
      const std::int64_t apart = at.slices * rows.t.strides[2];
      for (; !rows.paged && i + (kFewRows - 1) * at.slices < end; i += kFewRows * at.slices, place += kFewRows * apart)
        add_rows<kFewRows>(place, apart, reference, sums);
      for (; i < end; i += at.slices) add_rows<1>(rows.row(i) + column * rows.t.strides[3], 0, reference, sums);
      totals[0] += sums.squares;
      if (group == 0) totals[1] = sums.rows;
      __syncthreads();
      for (int x = 0; x < kCount; ++x) parts[threadIdx.x][x] = sums.columns[x];
      __syncthreads();
      if (at.slice > 0 || group >= at.groups) continue;
      for (int x = 0; x < kCount; ++x) {
        double sum = 0;
        for (int s = 0; s < at.slices; ++s) sum += parts[s * at.width + at.place][x];
        out.columns[run * dim + column + x] = sum;
      }
    }
    block_sum<kThreads>(totals);
    if (threadIdx.x == 0) out.squares[run] = {totals[0], totals[1]};
  }
  next_kernel_wait();  // what comes after this kernel comes after those before it
}

/// What the runs of a head come to.
struct HeadSums {
  double rows = 0, squares = 0, mean_square = 0, about_mean = 0;  ///< Σ ‖row‖², ‖mean‖², Σ ‖row − mean‖²
};

/// All threads of a block.
template <class T>
__device__ HeadSums sum_head(const HeadRows<T>& rows, const RunSums& sums, std::int64_t head) {
  __shared__ double parts[kHeadThreads];
  __shared__ bool bad[kRunRows];
  const std::int64_t dim = rows.p.dim_qk;
  const double2* runs = sums.squares + head * sums.runs;
  double totals[3] = {};  // squares about the reference and rows, of runs that are finite; and how many are not
  for (std::int64_t run = threadIdx.x; run < sums.runs; run += kHeadThreads) {
    if (isfinite(runs[run].x)) totals[0] += runs[run].x, totals[1] += runs[run].y;
    else totals[2] += 1;
  }
  block_sum<kHeadThreads>(totals);
  const bool damaged = totals[2] > 0;
  const auto each_damaged =
      [&](const auto& look) {  // look(begin, end), with the rows of a run that do not count marked
        for (std::int64_t run = 0; damaged && run < sums.runs; ++run) {
          if (isfinite(runs[run].x)) continue;
          const std::int64_t begin = run * kRunRows, end = min(rows.length, begin + kRunRows);
          for (std::int64_t i = begin + threadIdx.x; i < end; i += kHeadThreads) {
            bool finite = rows.counts(i);
            for (std::int64_t d = 0; d < dim && finite; ++d) finite = isfinite(rows.value(rows.row(i), d));
            bad[i - begin] = !finite;
          }
          __syncthreads();
          look(begin, end);
          __syncthreads();
        }
      };
  double good[1] = {};
  each_damaged([&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kHeadThreads) good[0] += !bad[i - begin];
  });
  if (damaged) block_sum<kHeadThreads>(good);
  const double count = totals[1] + good[0];
  if (count == 0) return {};
  const T* about = rows.reference();
  const int width = static_cast<int>(min(dim, std::int64_t{kHeadThreads})), slices = kHeadThreads / width;
  const int slice = static_cast<int>(threadIdx.x) / width, place = static_cast<int>(threadIdx.x) % width;
  // Squares of means, of their distances from the reference, what squares about that lack to squares; and such squares
  // of damaged runs.
  double of_columns[4] = {};
  for (std::int64_t before = 0; before < dim; before += width) {
    const std::int64_t d = before + place;
    const bool works = slice < slices && d < dim;
    const double reference = works && about ? static_cast<double>(rows.value(about, d)) : 0;
    double sum = 0;
#pragma unroll 8
    for (std::int64_t run = slice; run < sums.runs && works; run += slices)
      if (!damaged || isfinite(runs[run].x)) sum += sums.columns[(head * sums.runs + run) * dim + d];
    each_damaged([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin + slice; i < end && works; i += slices) {
        const double off = bad[i - begin] ? 0 : static_cast<double>(rows.value(rows.row(i), d)) - reference;
        sum += off, of_columns[3] += off * off;
      }
    });
    __syncthreads();
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (slice > 0 || d >= dim) continue;
    for (int s = 1; s < slices; ++s) sum += parts[s * width + place];
    const double shift = sum / count, mean = reference + shift;
    of_columns[0] += mean * mean;
    of_columns[1] += shift * shift;
    of_columns[2] += reference * (2 * shift + reference);  // x² is (x − r)² + 2r(x − r) + r²
  }
  block_sum<kHeadThreads>(of_columns);
  const double squares = totals[0] + of_columns[3];
  return {count, max(0.0, squares + count * of_columns[2]), of_columns[0], max(0.0, squares - count * of_columns[1])};
}

/// A block takes a query head.
template <class T>
__global__ void __launch_bounds__(kHeadThreads, 1)
    sum_heads(const __grid_constant__ ForwardView f, const __grid_constant__ CausesMemory memory) {
  const ProblemView& p = f.p;
  const std::int64_t head = blockIdx.x, kv_head = head / p.heads_q * p.heads_kv + head % p.heads_q / p.group;
  const HeadSums q = sum_head(HeadRows<T>(f, memory, false, head), memory.q, head),
                 k = sum_head(HeadRows<T>(f, memory, true, kv_head), memory.k, kv_head);
  if (threadIdx.x != 0) return;
  Causes out;
  out.dim = static_cast<double>(p.dim_qk);
  out.q_square = q.rows > 0 ? q.squares / (q.rows * out.dim) : 0;
  out.k_variance = k.rows > 0 ? k.about_mean / (k.rows * out.dim) : 0;
  out.key_mean_square = k.mean_square;
  f.causes[head] = out;
}

/// Whether rows can be read so many elements at a time.
bool in_steps(const View& t, std::int64_t dim, std::int64_t count, std::size_t size) {
  bool whole = t.strides[3] == 1 && dim % count == 0 &&
               reinterpret_cast<std::uintptr_t>(t.data) % (static_cast<std::size_t>(count) * size) == 0;
  for (int axis = 0; axis < 3; ++axis) whole = whole && t.strides[axis] % count == 0;
  return whole;
}

template <class T>
void launch(const ForwardView& f, const CausesMemory& memory, bool beside, cudaStream_t stream) {
  const ProblemView& p = f.p;
  constexpr int kCount = 4;  // eight of 16 bits would need more registers than there are
  const std::int64_t heads = p.batch * p.heads_q, runs_of_q = heads * memory.q.runs,
                     all = runs_of_q + p.batch * p.heads_kv * memory.k.runs;
  if (heads == 0) return;
  const bool wide = in_steps(f.q, p.dim_qk, kCount, sizeof(T)) && in_steps(f.k, p.dim_qk, kCount, sizeof(T));
  const auto sum = wide ? sum_runs<T, kCount> : sum_runs<T, 1>;
  const std::int64_t rows = heads * p.len_q, keys = p.batch * p.heads_kv * p.len_kv;
  if (memory.seen && rows > 0 && keys > 0) {
    check(cudaMemsetAsync(memory.seen, 0, static_cast<std::size_t>(keys), stream), "keys that are seen");
    launch_kernel("keys that are seen", mark_seen, grid(divide_up(rows, kThreads / 32)), kThreads, 0, stream, f,
                  memory.seen, rows);
  }
  if (memory.seen) beside = false;  // records are read
  if (beside && all > 0)
    launch_beside("sums of Q and K", sum, dim3(grid(all)), kThreads, 0, stream, f, memory, runs_of_q, all);
  else if (all > 0) launch_kernel("sums of Q and K", sum, grid(all), kThreads, 0, stream, f, memory, runs_of_q, all);
  launch_kernel("causes", sum_heads<T>, static_cast<unsigned>(heads), kHeadThreads, 0, stream, f, memory);
}

RunSums take(base::Arena& arena, std::int64_t heads, std::int64_t length, std::int64_t dim) {
  RunSums sums;
  sums.runs = divide_up(length, kRunRows);
  sums.columns = arena.take<double>(heads * sums.runs * dim);
  sums.squares = arena.take<double2>(heads * sums.runs);
  return sums;
}

}  // namespace

CausesMemory causes_memory(const Plan& plan, base::Arena& arena) {
  const Shape& s = plan.shape;
  if (plan.problem.stats != StatsLevel::kFull || !plan.problem.stats_options.causes) return {};
  CausesMemory memory{take(arena, s.batch * s.heads_q, s.len_q, s.dim_qk),
                      take(arena, s.batch * s.heads_kv, s.len_kv, s.dim_qk)};
  const Mask& mask = plan.problem.mask;
  if (mask.documents || mask.allowed.present() || mask.bias.present())
    memory.seen = arena.take<std::uint8_t>(s.batch * s.heads_kv * s.len_kv);
  return memory;
}

void find_causes(const ForwardView& view, const CausesMemory& memory, DType dtype, bool beside, cudaStream_t stream) {
  switch (dtype) {
    case DType::kF16: launch<__half>(view, memory, beside, stream); break;
    case DType::kBF16: launch<__nv_bfloat16>(view, memory, beside, stream); break;
    default: launch<float>(view, memory, beside, stream); break;
  }
}

}  // namespace rootdk::cuda
