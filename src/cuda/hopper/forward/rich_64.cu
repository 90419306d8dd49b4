// Instances of the Hopper forward at head size 64: scores that are more than scaled.
#include "cuda/hopper/forward/instances.h"

namespace rootdk::cuda {

ROOTDK_HOPPER_RICH(64)

}  // namespace rootdk::cuda
