#include "cuda/hopper_tiles.h"

namespace rootdk::gpu {

ROOTDK_HOPPER_SCALED(128)

}  // namespace rootdk::gpu
