#include "rootdk/lab/train/checkpoint_store.h"

namespace rootdk::lab {

CheckpointStore::~CheckpointStore() = default;

}  // namespace rootdk::lab
