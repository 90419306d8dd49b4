// A program of somebody else's over rootdk::lab: explains a row of scores.
#include <rootdk/lab.h>

int main() {
  const rootdk::lab::Explanation explanation = rootdk::lab::explain({.scores = {14, 10, 12}, .dk = 64});
  return explanation.rules.size() == 3 && explanation.rules[1].divisor == 8 ? 0 : 1;
}
