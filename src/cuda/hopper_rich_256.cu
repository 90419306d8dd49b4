#include "cuda/hopper_tiles.h"

namespace rootdk::gpu {

ROOTDK_HOPPER_RICH(256)

}  // namespace rootdk::gpu
