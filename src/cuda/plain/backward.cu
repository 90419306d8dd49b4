// Backward for every problem, on every card since sm_80. Every element of a gradient has one owner that adds in a fixed
// order, so the bits do not depend on the schedule: query rows own dQ and what is summed along a row, keys own dK and
// dV, elements of the bias own dbias.
#include "cuda/common/launch.h"
#include "cuda/plain/plain.h"
#include "cuda/plain/tile.cuh"

namespace rootdk::cuda {

namespace {

constexpr int kWarps = kTileThreads / 32;

/// delta = dO·O − dLSE, a warp per row. A row that sees no key has O = 0, and its dO may hold anything.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    delta_kernel(const __grid_constant__ BackwardView f, std::int64_t rows) {
  const ProblemView& p = f.p;
  const int lane = threadIdx.x % 32;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t b = row / p.len_q / p.heads_q, h = row / p.len_q % p.heads_q, i = row % p.len_q;
    float sum = 0;
    for (std::int64_t d = lane; d < p.dim_v; d += 32) {
      const float o = widen(reinterpret_cast<const T*>(f.o.data)[at(f.o, b, h, i, d)]),
                  d_o = widen(reinterpret_cast<const T*>(f.d_o.data)[at(f.d_o, b, h, i, d)]);
      sum = fmaf(o != 0 ? d_o : 0, o, sum);
    }
    sum = warp_sum(sum);
    if (f.d_lse.data) sum -= read(f.d_lse, at(f.d_lse, b, h, i));
    if (lane == 0) f.delta[row] = sum;
  }
}

struct Gradient {
  float weight;   ///< p times what dropout makes of it
  float d_score;  ///< of what softmax sees
  float d_raw;    ///< of c·q·k
};

/// Of one pair; zeros for a key that the row does not see.
__device__ Gradient gradient_of(const ProblemView& p, const PhiloxKey& key, std::int64_t b, std::int64_t h,
                                std::int64_t i, std::int64_t j, const QueryRow& row, float c, float dot, float d_p,
                                float lse, float delta) {
  if (j < row.begin || j >= row.end || lse == -kInfinityF) return {0, 0, 0};
  const Score s = score_of(p, b, h, i, j, row, c, dot);
  if (!s.visible) return {0, 0, 0};
  const float probability = expf(s.score - lse), keep = keep_factor(p, key, b, h, i, j);
  const float d_score = probability * (keep * d_p - delta);
  return {probability * keep, d_score, d_score * s.slope};
}

/// Σ over keys of w·x, added in place: sums[own][d] += Σ_other w[own][other]·x[other][d], for `width` elements from
/// `first_dim`.
template <int kOwn, int kOther, class Weight, class Load>
__device__ void accumulate(float* sums, int dims, int width, int others, const Weight& weight, const Load& load) {
  for (int d = threadIdx.x; d < width; d += kTileThreads) {
    float acc[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) acc[r] = sums[r * dims + d];
    for (int x = 0; x < others; ++x) {
      const float value = load(x, d);
#pragma unroll
      for (int r = 0; r < kOwn; ++r)
        if (weight(r, x) != 0) acc[r] = fmaf(weight(r, x), value, acc[r]);
    }
#pragma unroll
    for (int r = 0; r < kOwn; ++r) sums[r * dims + d] = acc[r];
  }
}

/// dQ, and the sums along each row.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    rows_kernel(const __grid_constant__ BackwardView f, std::int64_t tasks, int dims) {
  const ProblemView& p = f.p;
  float* sums = dynamic_shared<float>();  // [kTileRows][dims]
  __shared__ TileMemory memory;
  __shared__ TileRows tile;
  __shared__ float weights[kTileRows][kTileKeys];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tiles = divide_up(p.len_q, kTileRows);
  const T *k_data = reinterpret_cast<const T*>(f.k.data), *q_data = reinterpret_cast<const T*>(f.q.data);

  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const std::int64_t b = task / tiles / p.heads_q, h = task / tiles % p.heads_q, first_row = task % tiles * kTileRows;
    const std::int64_t first_index = (b * p.heads_q + h) * p.len_q + first_row;
    find_rows(p, b, h, first_row, tile);
    float lse[kRowsPerWarp], delta[kRowsPerWarp];
    double d_c[kRowsPerWarp], squares[kRowsPerWarp], d_scores[kRowsPerWarp];
#pragma unroll
    for (int n = 0; n < kRowsPerWarp; ++n) {
      const int r = warp * kRowsPerWarp + n;
      const bool real = first_row + r < p.len_q;
      lse[n] = real ? read(f.lse, at(f.lse, b, h, first_row + r)) : -kInfinityF;
      delta[n] = real ? f.delta[first_index + r] : 0;
      d_c[n] = squares[n] = 0;
    }
    for (std::int64_t first_dim = 0; first_dim < p.dim_qk; first_dim += dims) {
      const int width = static_cast<int>(min(static_cast<std::int64_t>(dims), p.dim_qk - first_dim));
      for (int x = threadIdx.x; x < kTileRows * dims; x += kTileThreads) sums[x] = 0;
#pragma unroll
      for (int n = 0; n < kRowsPerWarp; ++n) d_scores[n] = 0;
      for (std::int64_t first_key = tile.begin; first_key < tile.end; first_key += kTileKeys) {
        float dots[kRowsPerWarp], d_p[kRowsPerWarp];
        tile_dots<T>(p, f.q, f.k, p.dim_qk, {b, h, first_row, first_key}, memory, dots);
        tile_dots<T>(p, f.d_o, f.v, p.dim_v, {b, h, first_row, first_key}, memory, d_p);
        const PhiloxKey key = philox_key(p);
#pragma unroll
        for (int n = 0; n < kRowsPerWarp; ++n) {
          const int r = warp * kRowsPerWarp + n;
          const Gradient g = gradient_of(p, key, b, h, first_row + r, first_key + lane, tile.row[r], tile.c[r], dots[n],
                                         d_p[n], lse[n], delta[n]);
          weights[r][lane] = g.d_raw;
          d_scores[n] += static_cast<double>(g.d_score) * static_cast<double>(g.d_score);
        }
        __syncthreads();
        const int keys = static_cast<int>(min(static_cast<std::int64_t>(kTileKeys), tile.end - first_key));
        accumulate<kTileRows, kTileKeys>(
            sums, dims, width, keys, [&](int r, int j) { return weights[r][j]; },
            [&](int j, int d) {
              return widen(
                  k_data[key_offset(p, f.k, b, h / p.group, first_key + j) + (first_dim + d) * f.k.strides[3]]);
            });
        __syncthreads();
      }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kRowsPerWarp; ++n) {
        const int r = warp * kRowsPerWarp + n;
        const std::int64_t i = first_row + r;
        if (i >= p.len_q) continue;
        double dot = 0, square = 0;
        for (int d = lane; d < width; d += 32) {
          const float sum = sums[r * dims + d];
          if (sum != 0)
            dot += static_cast<double>(widen(q_data[at(f.q, b, h, i, first_dim + d)])) * static_cast<double>(sum);
          square += static_cast<double>(sum) * static_cast<double>(sum);
          if (f.d_q.data)
            reinterpret_cast<T*>(f.d_q.data)[at(f.d_q, b, h, i, first_dim + d)] = narrow<T>(tile.c[r] * sum);
        }
        d_c[n] += warp_sum(dot), squares[n] += warp_sum(square);
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kRowsPerWarp; ++n) {
      const int r = warp * kRowsPerWarp + n;
      const double scores = warp_sum(d_scores[n]), c = tile.c[r];
      if (lane != 0 || first_row + r >= p.len_q) continue;
      const bool seen = lse[n] != -kInfinityF;
      const double sink = p.sink && seen ? -static_cast<double>(expf(p.sink[h] - lse[n]) * delta[n]) : 0;
      f.rows[first_index + r] = {d_c[n], sink, scores, c * c * squares[n]};
    }
  }
}

/// dK or dV of 32 keys: over the query heads that read them and over query tiles, in order.
template <class T, bool kValues>
__global__ void __launch_bounds__(kTileThreads)
    keys_kernel(const __grid_constant__ BackwardView f, std::int64_t tasks, int dims) {
  const ProblemView& p = f.p;
  float* sums = dynamic_shared<float>();  // [kTileKeys][dims]
  __shared__ TileMemory memory;
  __shared__ TileRows tile;
  __shared__ float weights[kTileRows][kTileKeys];
  __shared__ double squares[kTileKeys];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t tiles = divide_up(p.len_kv, kTileKeys), dim = kValues ? p.dim_v : p.dim_qk;
  const View& from = kValues ? f.d_o : f.q;
  const View& to = kValues ? f.d_v : f.d_k;
  const T* from_data = reinterpret_cast<const T*>(from.data);

  for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const std::int64_t b = task / tiles / p.heads_kv, kv_head = task / tiles % p.heads_kv,
                       first_key = task % tiles * kTileKeys;
    if (threadIdx.x < kTileKeys) squares[threadIdx.x] = 0;
    for (std::int64_t first_dim = 0; first_dim < dim; first_dim += dims) {
      const int width = static_cast<int>(min(static_cast<std::int64_t>(dims), dim - first_dim));
      for (int x = threadIdx.x; x < kTileKeys * dims; x += kTileThreads) sums[x] = 0;
      for (std::int64_t h = kv_head * p.group; h < (kv_head + 1) * p.group; ++h)
        for (std::int64_t first_row = 0; first_row < p.len_q; first_row += kTileRows) {
          find_rows(p, b, h, first_row, tile);
          if (tile.end <= first_key || tile.begin >= first_key + kTileKeys) continue;
          float dots[kRowsPerWarp], d_p[kRowsPerWarp] = {};
          tile_dots<T>(p, f.q, f.k, p.dim_qk, {b, h, first_row, first_key}, memory, dots);
          if constexpr (!kValues) tile_dots<T>(p, f.d_o, f.v, p.dim_v, {b, h, first_row, first_key}, memory, d_p);
          const PhiloxKey key = philox_key(p);
#pragma unroll
          for (int n = 0; n < kRowsPerWarp; ++n) {
            const int r = warp * kRowsPerWarp + n;
            const std::int64_t i = first_row + r;
            float weight = 0;
            if (i < p.len_q) {
              const float lse = read(f.lse, at(f.lse, b, h, i)), delta = f.delta[(b * p.heads_q + h) * p.len_q + i];
              const Gradient g =
                  gradient_of(p, key, b, h, i, first_key + lane, tile.row[r], tile.c[r], dots[n], d_p[n], lse, delta);
              weight = kValues ? g.weight : tile.c[r] * g.d_raw;
            }
            weights[r][lane] = weight;
          }
          __syncthreads();
          const int rows = static_cast<int>(min(static_cast<std::int64_t>(kTileRows), p.len_q - first_row));
          accumulate<kTileKeys, kTileRows>(
              sums, dims, width, rows, [&](int j, int r) { return weights[r][j]; },
              [&](int r, int d) { return widen(from_data[at(from, b, h, first_row + r, first_dim + d)]); });
          __syncthreads();
        }
      __syncthreads();
      for (int j = warp; j < kTileKeys; j += kWarps) {
        if (first_key + j >= p.len_kv) continue;
        double square = 0;
        for (int d = lane; d < width; d += 32) {
          const float sum = sums[j * dims + d];
          square += static_cast<double>(sum) * static_cast<double>(sum);
          reinterpret_cast<T*>(to.data)[at(to, b, kv_head, first_key + j, first_dim + d)] = narrow<T>(sum);
        }
        square = warp_sum(square);
        if (lane == 0) squares[j] += square;
      }
      __syncthreads();
    }
    const std::int64_t keys = p.batch * p.heads_kv * p.len_kv,
                       index = (b * p.heads_kv + kv_head) * p.len_kv + first_key + threadIdx.x;
    if (threadIdx.x < kTileKeys && first_key + threadIdx.x < p.len_kv)
      f.key_squares[(kValues ? keys : 0) + index] = squares[threadIdx.x];
    __syncthreads();
  }
}

/// A warp per element of the bias, over all pairs that share it.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    bias_kernel(const __grid_constant__ BackwardView f, std::int64_t elements) {
  const ProblemView& p = f.p;
  const PhiloxKey key = philox_key(p);
  const int lane = threadIdx.x % 32;
  const std::int64_t* shape = f.bias_shape;
  const T *q = reinterpret_cast<const T*>(f.q.data), *k = reinterpret_cast<const T*>(f.k.data),
          *v = reinterpret_cast<const T*>(f.v.data), *d_o = reinterpret_cast<const T*>(f.d_o.data);
  for (std::int64_t element = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; element < elements;
       element += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t place[4] = {element / shape[3] / shape[2] / shape[1], element / shape[3] / shape[2] % shape[1],
                                   element / shape[3] % shape[2], element % shape[3]};
    const std::int64_t sizes[4] = {p.batch, p.heads_q, p.len_q, p.len_kv};
    std::int64_t from[4], to[4];
    for (int axis = 0; axis < 4; ++axis) {
      const bool shared = shape[axis] == 1;
      from[axis] = shared ? 0 : place[axis], to[axis] = shared ? sizes[axis] : place[axis] + 1;
    }
    double sum = 0;
    for (std::int64_t b = from[0]; b < to[0]; ++b)
      for (std::int64_t h = from[1]; h < to[1]; ++h)
        for (std::int64_t i = from[2]; i < to[2]; ++i) {
          const QueryRow row = visible_keys(p, b, i);
          const auto c = static_cast<float>(scale_of(p, h, row));
          const float lse = read(f.lse, at(f.lse, b, h, i)), delta = f.delta[(b * p.heads_q + h) * p.len_q + i];
          for (std::int64_t j = max(from[3], row.begin); j < min(to[3], row.end); ++j) {
            float dot = 0, d_p = 0;
            const std::int64_t k_at = key_offset(p, f.k, b, h / p.group, j),
                               v_at = key_offset(p, f.v, b, h / p.group, j);
            for (std::int64_t d = lane; d < p.dim_qk; d += 32)
              dot = fmaf(widen(q[at(f.q, b, h, i, d)]), widen(k[k_at + d * f.k.strides[3]]), dot);
            for (std::int64_t d = lane; d < p.dim_v; d += 32)
              d_p = fmaf(widen(d_o[at(f.d_o, b, h, i, d)]), widen(v[v_at + d * f.v.strides[3]]), d_p);
            sum += static_cast<double>(
                gradient_of(p, key, b, h, i, j, row, c, warp_sum(dot), warp_sum(d_p), lse, delta).d_score);
          }
        }
    if (lane == 0) write(f.d_bias, at(f.d_bias, place[0], place[1], place[2], place[3]), static_cast<float>(sum));
  }
}

/// A block's sum in a fixed order. Synchronises; thread 0 has it.
__device__ double block_sum(double x) {
  __shared__ double parts[kWarps];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w];
  return sum;
}

/// A block per query head of a batch item: what its rows and keys add up to.
__global__ void __launch_bounds__(kTileThreads, 1) heads_kernel(const __grid_constant__ BackwardView f) {
  const ProblemView& p = f.p;
  const std::int64_t head = blockIdx.x, b = head / p.heads_q, h = head % p.heads_q;
  double rule = 0, gain = 0, offset = 0, sink = 0, d_scores = 0, d_log_scale = 0, d_q = 0;
  for (std::int64_t i = threadIdx.x; i < p.len_q; i += kTileThreads) {
    const RowSums& sums = f.rows[head * p.len_q + i];
    const QueryRow row = visible_keys(p, b, i);
    rule += p.yarn * length_factor(p, h, row) * sums.d_c;
    if (p.length == Scale::Length::kLogN)
      gain += factor_of(p, h) * base::log_keys(row) * sums.d_c, offset += factor_of(p, h) * sums.d_c;
    sink += sums.d_sink, d_scores += sums.d_scores, d_q += sums.d_q;
    d_log_scale += static_cast<double>(static_cast<float>(scale_of(p, h, row))) * sums.d_c;
  }
  double squares[2] = {};
  const std::int64_t keys = p.batch * p.heads_kv * p.len_kv, first = (b * p.heads_kv + h / p.group) * p.len_kv;
  for (int which = 0; which < 2 && f.stats; ++which) {
    if (!(which == 0 ? f.d_k : f.d_v).data) squares[which] = __longlong_as_double(0x7ff8000000000000ll);
    else
      for (std::int64_t j = threadIdx.x; j < p.len_kv; j += kTileThreads)
        squares[which] += f.key_squares[which * keys + first + j];
  }
  const double sums[4] = {block_sum(rule), block_sum(gain), block_sum(offset), block_sum(sink)};
  HeadGradients out;
  out.d_scores = block_sum(d_scores), out.d_log_scale = block_sum(d_log_scale), out.d_q = block_sum(d_q);
  out.d_k = block_sum(squares[0]), out.d_v = block_sum(squares[1]);
  if (threadIdx.x != 0) return;
  for (int x = 0; x < 4; ++x) f.head_sums[head * 4 + x] = sums[x];
  if (f.stats) f.stats[head] = out;
}

/// Each head's sums over the batch, in order.
__global__ void batch_kernel(const __grid_constant__ BackwardView f) {
  float* const out[4] = {f.d_scale, f.d_log_n_gain, f.d_log_n_offset, f.d_sink};
  for (std::int64_t h = threadIdx.x; h < f.p.heads_q; h += blockDim.x)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      double sum = 0;
      for (std::int64_t b = 0; b < f.p.batch; ++b) sum += f.head_sums[(b * f.p.heads_q + h) * 4 + x];
      if (out[x]) out[x][h] = static_cast<float>(sum);
    }
}

int dims_held(std::int64_t dim, int most) { return static_cast<int>(dim < most ? dim : most); }

template <class T, bool kValues>
void launch_keys(const BackwardView& f, cudaStream_t stream) {
  const std::int64_t tasks = divide_up(f.p.len_kv, kTileKeys) * f.p.heads_kv * f.p.batch;
  const int dims = dims_held(kValues ? f.p.dim_v : f.p.dim_qk, kKeyDims);
  const std::size_t bytes = sizeof(float) * kTileKeys * static_cast<std::size_t>(dims);
  allow_shared(keys_kernel<T, kValues>, bytes);
  launch_kernel(kValues ? "plain dV" : "plain dK", keys_kernel<T, kValues>, grid(tasks), kTileThreads, bytes, stream, f,
                tasks, dims);
}

template <class T>
void launch(const BackwardView& f, cudaStream_t stream) {
  const ProblemView& p = f.p;
  const std::int64_t rows = p.batch * p.heads_q * p.len_q, keys = p.batch * p.heads_kv * p.len_kv;
  if (rows > 0) {
    launch_kernel("plain delta", delta_kernel<T>, grid(divide_up(rows, kWarps)), kTileThreads, 0, stream, f, rows);
    const std::int64_t tasks = divide_up(p.len_q, kTileRows) * p.heads_q * p.batch;
    const int dims = dims_held(p.dim_qk, kForwardDims);
    const std::size_t bytes = sizeof(float) * kTileRows * static_cast<std::size_t>(dims);
    allow_shared(rows_kernel<T>, bytes);
    launch_kernel("plain dQ", rows_kernel<T>, grid(tasks), kTileThreads, bytes, stream, f, tasks, dims);
  }
  if (f.d_k.data && keys > 0) launch_keys<T, false>(f, stream);
  if (f.d_v.data && keys > 0) launch_keys<T, true>(f, stream);
  const std::int64_t elements = f.bias_shape[0] * f.bias_shape[1] * f.bias_shape[2] * f.bias_shape[3];
  if (f.d_bias.data && elements > 0) {
    launch_kernel("plain dbias", bias_kernel<T>, grid(divide_up(elements, kWarps)), kTileThreads, 0, stream, f,
                  elements);
  }
  plain_head_sums(f, stream);
}

}  // namespace

void plain_head_sums(const BackwardView& f, cudaStream_t stream) {
  const ProblemView& p = f.p;
  if (p.batch * p.heads_q > 0) {
    launch_kernel("plain head sums", heads_kernel, static_cast<unsigned>(p.batch * p.heads_q), kTileThreads, 0, stream,
                  f);
  }
  if (p.heads_q > 0) {
    launch_kernel("plain batch sums", batch_kernel, 1, 256, 0, stream, f);
  }
}

void plain_backward(const BackwardView& f, DType dtype, cudaStream_t stream) {
  switch (dtype) {
    case DType::kF16: launch<__half>(f, stream); break;
    case DType::kBF16: launch<__nv_bfloat16>(f, stream); break;
    default: launch<float>(f, stream); break;
  }
}

}  // namespace rootdk::cuda
