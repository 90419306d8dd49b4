// Instances of the Hopper forward at head size 128: scores that are more than scaled.
#include "cuda/hopper/forward/instances.h"

namespace rootdk::cuda {

ROOTDK_HOPPER_RICH(128)

}  // namespace rootdk::cuda
