// The destructor that ties the interface's table of functions to this file.
#include "rootdk/lab/train/task.h"

namespace rootdk::lab {

Task::~Task() = default;

}  // namespace rootdk::lab
