// The destructor that ties the interface's table of functions to this file.
#include "rootdk/lab/train/checkpoint_store.h"

namespace rootdk::lab {

CheckpointStore::~CheckpointStore() = default;

}  // namespace rootdk::lab
