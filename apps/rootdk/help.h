// The help in as many columns as there are.
#pragma once

#include <memory>

#include "report/text.h"

namespace CLI {
class FormatterBase;
}

namespace rootdk::app {

std::shared_ptr<CLI::FormatterBase> help_formatter(const report::Layout& layout);

}  // namespace rootdk::app
