// The sentences of a judgement whose codes and numbers are known.
#pragma once

#include <string>

#include "rootdk/theory/judge.h"

namespace rootdk::theory {

std::string words_of(const Evidence& e, const Judgement& j, const Thresholds& t);
std::string fix_of(const Evidence& e, const Judgement& j, const Thresholds& t);

/// u: the most that rounding to this dtype moves a number, relatively.
double unit_roundoff(DType dtype);

}  // namespace rootdk::theory
