// A layer with everything that a forward and a backward of it need, filled with random numbers: what the layer's tests
// share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nn/naive_layer.h"
#include "rootdk/nn/multi_head_attention.h"

namespace rootdk::nn::testing {

inline std::vector<float> normal_values(std::int64_t count, std::uint64_t stream, double std = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill(values, Init::normal(std), {}, {2024, stream});
  return values;
}

struct Case {
  explicit Case(const NaiveConfig& config)
      : c(config),
        layer({.width = c.width,
               .heads_q = c.heads_q,
               .heads_kv = c.heads_kv,
               .dim_qk = c.dim_qk,
               .dim_v = c.dim_v,
               .width_kv = c.width_kv,
               .bias_qkv = c.bias_qkv,
               .bias_out = c.bias_out,
               .rotary = c.rotary}),
        len_kv(c.self ? c.len_q : c.len_kv),
        x_q(normal_values(c.batch * c.len_q * c.width, 1)),
        x_kv(normal_values(c.self ? 0 : c.batch * len_kv * c.width_kv, 2)),
        d_out(normal_values(c.batch * c.len_q * c.width, 3)),
        scale(normal_values(c.heads_q, 4, 1 / std::sqrt(static_cast<double>(c.dim_qk)))),
        sink(normal_values(c.sink ? c.heads_q : 0, 5)) {
    initialise(layer.parameters(), Init::lecun_normal(), {2024, 6});
    std::uint64_t stream = 10;
    for (Linear* p : layer.parameters().each()) fill(p->bias, Init::normal(1), {}, {2024, stream++});
    problem.scale = Scale::per_head(scale);
    problem.sink = sink;
    problem.mask.causal = c.causal;
  }

  ConstSequence q() const { return {x_q.data(), c.batch, c.len_q, c.width}; }
  ConstSequence kv() const { return {x_kv.data(), c.batch, len_kv, c.width_kv}; }

  Stats forward() {
    out.assign(x_q.size(), -1.0f);
    const Sequence to = {out.data(), c.batch, c.len_q, c.width};
    return c.self ? layer.forward(problem, q(), to, &saved) : layer.forward(problem, q(), kv(), to, &saved);
  }

  // Inputs' gradients start as garbage, to be overwritten; those of what is learned start as `gathered`, to be added
  // to.
  void backward(float gathered) {
    gradients = zeros_like(layer.parameters());
    for (Linear* p : gradients.each()) {
      std::fill(p->weight.begin(), p->weight.end(), gathered);
      std::fill(p->bias.begin(), p->bias.end(), gathered);
    }
    d_scale.assign(scale.size(), gathered);
    d_sink.assign(sink.size(), gathered);
    d_x_q.assign(x_q.size(), 77.0f);
    d_x_kv.assign(x_kv.size(), 77.0f);
    AttentionGradients g;
    g.parameters = &gradients;
    g.d_x_q = {d_x_q.data(), c.batch, c.len_q, c.width};
    if (!c.self) g.d_x_kv = {d_x_kv.data(), c.batch, len_kv, c.width_kv};
    g.d_scale = d_scale;
    g.d_sink = d_sink;
    layer.backward(saved, {d_out.data(), c.batch, c.len_q, c.width}, g);
  }

  template <class T>
  Arrays<T> arrays() const {
    Arrays<T> all;
    const auto put = [&](const std::string& name, const std::vector<float>& a) {
      all[name] = std::vector<T>(a.begin(), a.end());
    };
    put("x_q", x_q), put("x_kv", x_kv), put("scale", scale), put("sink", sink);
    const char* names[] = {"q", "k", "v", "o"};
    for (std::size_t n = 0; n < 4; ++n) {
      put(std::string("w_") + names[n], layer.parameters().each()[n]->weight);
      put(std::string("b_") + names[n], layer.parameters().each()[n]->bias);
    }
    return all;
  }

  std::map<std::string, std::vector<float>> results() const {
    std::map<std::string, std::vector<float>> all = {
        {"out", out}, {"x_q", d_x_q}, {"x_kv", d_x_kv}, {"scale", d_scale}, {"sink", d_sink}};
    const char* names[] = {"q", "k", "v", "o"};
    for (std::size_t n = 0; n < 4; ++n) {
      all[std::string("w_") + names[n]] = gradients.each()[n]->weight;
      all[std::string("b_") + names[n]] = gradients.each()[n]->bias;
    }
    return all;
  }

  NaiveConfig c;
  MultiHeadAttention layer;
  std::int64_t len_kv;
  std::vector<float> x_q, x_kv, d_out, scale, sink;
  Problem problem;
  AttentionSaved saved;
  std::vector<float> out, d_x_q, d_x_kv, d_scale, d_sink;
  AttentionParameters gradients;
};

/// Every feature at once, and no two sizes alike.
inline NaiveConfig typical() {
  NaiveConfig c;
  c.batch = 2, c.len_q = 9, c.len_kv = 13;
  c.width = 12, c.width_kv = 10;
  c.heads_q = 4, c.heads_kv = 2, c.dim_qk = 6, c.dim_v = 5;
  c.bias_qkv = c.bias_out = c.causal = c.sink = true;
  c.rotary = Rotary{};
  return c;
}

inline NaiveConfig self_attention(NaiveConfig c) {
  c.self = true;
  c.len_kv = c.len_q;
  c.width_kv = c.width;
  return c;
}

}  // namespace rootdk::nn::testing
