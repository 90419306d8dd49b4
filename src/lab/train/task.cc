#include "rootdk/lab/train/task.h"

namespace rootdk::lab {

Task::~Task() = default;

}  // namespace rootdk::lab
