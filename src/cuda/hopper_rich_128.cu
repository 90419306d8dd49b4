#include "cuda/hopper_tiles.h"

namespace rootdk::gpu {

ROOTDK_HOPPER_RICH(128)

}  // namespace rootdk::gpu
