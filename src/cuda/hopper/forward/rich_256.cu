// Instances of the Hopper forward at head size 256: scores that are more than scaled.
#include "cuda/hopper/forward/instances.h"

namespace rootdk::cuda {

ROOTDK_HOPPER_RICH(256)

}  // namespace rootdk::cuda
