// A program of somebody else's over rootdk::theory: a closed form and a quadrature.
#include <rootdk/theory.h>

int main() {
  return rootdk::theory::dot_product_variance(64) == 64 && rootdk::theory::gaussian_softmax(1, 2).entropy < 0.6 ? 0 : 1;
}
