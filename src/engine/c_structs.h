// The structs of rootdk/c.h as those of C++, and exceptions as codes. Checks only what C++ types rule out (null
// pointers, enumerations, counts, reserved space); everything else is checked where C++ callers are.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/refuse.h"
#include "rootdk/attention.h"
#include "rootdk/c.h"

namespace rootdk::c {

inline constexpr std::int32_t kProblemVersion = 2;

/// What rootdk_last_error() says next; kept in a fixed array, since to remember why something failed must not itself
/// fail.
void remember(std::string_view message);

/// The code of the exception that is being handled, which is remembered.
int code_of_exception();

template <class Body>
int guarded(Body&& body) {
  try {
    body();
    remember("");
    return ROOTDK_OK;
  } catch (...) {
    return code_of_exception();
  }
}

template <class T>
T& given(std::string_view name, T* pointer) {
  if (pointer == nullptr) base::refuse("{}: null", name);
  return *pointer;
}

Tensor to_tensor(std::string_view name, const rootdk_tensor& tensor);
Problem to_problem(const rootdk_problem* problem);  ///< null: the default one
Pass to_pass(rootdk_pass pass);
Inputs to_inputs(const rootdk_inputs* inputs);
Outputs to_outputs(const rootdk_outputs& outputs);
BackwardInputs to_backward_inputs(const rootdk_backward_inputs* inputs);
Gradients to_gradients(const rootdk_gradients* gradients);

/// An array of statistics that the caller may leave out: `wanted` entries, and only where the problem has them.
void check_stats_array(std::string_view name, const void* data, std::int64_t count, std::int64_t wanted, bool has,
                       std::string_view need);

/// One entry for each head; `heads` and `gaps` may be null.
void copy_stats(const Stats& stats, rootdk_head_stats* heads, std::int64_t* gaps);
void copy_gradient_stats(const GradientStats& stats, rootdk_head_gradients* heads);

/// rootdk_stats is Stats by another name.
inline const Stats& to_stats(const rootdk_stats& stats) { return reinterpret_cast<const Stats&>(stats); }
rootdk_stats* new_stats(Stats stats);

/// C's malloc knows nothing of 64-byte alignment, so a C workspace is that much larger and is aligned here.
std::size_t padded(std::size_t workspace_bytes);
std::span<std::byte> align(void* workspace, std::size_t size, const Plan& plan);

/// At most `capacity` bytes of `words` with the closing NUL; `needed` may be null.
void copy_words(const std::string& words, char* buffer, std::size_t capacity, std::size_t* needed);

}  // namespace rootdk::c
