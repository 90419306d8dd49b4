#include "cuda/hopper_tiles.h"

namespace rootdk::gpu {

ROOTDK_HOPPER_SCALED(256)

}  // namespace rootdk::gpu
