// A program of somebody else's over rootdk::nn: makes a layer and initialises it.
#include <rootdk/nn/init.h>

int main() {
  rootdk::nn::Linear layer(4, 4, true);
  rootdk::nn::initialise(layer, rootdk::nn::Init::lecun_normal(), {});
  return layer.weight[0] != 0 ? 0 : 1;
}
