// Your own function of the score. Write a type with operator() and derivative(), generic over float and double; rootdk
// runs it inside the fused pass, forward and backward.
//
//   struct Leaky {
//     template <class T> T operator()(T s) const { return s < 0 ? T(0.1) * s : s; }
//     template <class T> T derivative(T s) const { return s < 0 ? T(0.1) : T(1); }
//   };
//   Leaky leaky;
//   problem.transform = rootdk::ScoreTransform::of(leaky);
#pragma once

#include <concepts>
#include <cstddef>

namespace rootdk {

template <class F, class T>
concept ScoreFunctionOn = requires(const F& f, T s) {
  { f(s) } -> std::convertible_to<T>;
  { f.derivative(s) } -> std::convertible_to<T>;
};

template <class F>
concept ScoreFunction = ScoreFunctionOn<F, float> && ScoreFunctionOn<F, double>;

/// A ScoreFunction with its type erased, a whole tile of scores per call so that the loop is compiled with your code.
/// It must be a pure function: rootdk may call it from several threads, more than once per score, and on scores that a
/// mask will hide afterwards.
struct ScoreTransform {
  const void* context = nullptr;  ///< not owned; must outlive the calls that use it
  /// s ← f(s) for n scores.
  void (*apply_f32)(const void* context, float* s, std::size_t n) = nullptr;
  void (*apply_f64)(const void* context, double* s, std::size_t n) = nullptr;
  /// The same, and slope ← slope · f′(s) at the s that came in.
  void (*chain_f32)(const void* context, float* s, float* slope, std::size_t n) = nullptr;
  void (*chain_f64)(const void* context, double* s, double* slope, std::size_t n) = nullptr;

  bool present() const { return apply_f32 != nullptr; }

  template <ScoreFunction F>
  static ScoreTransform of(const F& f) {
    return {&f, &apply<F, float>, &apply<F, double>, &chain<F, float>, &chain<F, double>};
  }
  template <ScoreFunction F>
  static ScoreTransform of(const F&& f) = delete;  // a temporary would be gone before the call

 private:
  template <class F, class T>
  static void apply(const void* context, T* s, std::size_t n) {
    const F& f = *static_cast<const F*>(context);
    for (std::size_t i = 0; i < n; ++i) s[i] = static_cast<T>(f(s[i]));
  }
  template <class F, class T>
  static void chain(const void* context, T* s, T* slope, std::size_t n) {
    const F& f = *static_cast<const F*>(context);
    for (std::size_t i = 0; i < n; ++i) {
      slope[i] *= static_cast<T>(f.derivative(s[i]));
      s[i] = static_cast<T>(f(s[i]));
    }
  }
};

}  // namespace rootdk
