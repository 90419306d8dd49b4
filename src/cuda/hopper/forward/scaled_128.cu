// Instances of the Hopper forward at head size 128: scores that are scaled and no more.
#include "cuda/hopper/forward/instances.h"

namespace rootdk::cuda {

ROOTDK_HOPPER_SCALED(128)

}  // namespace rootdk::cuda
