// rootdk demo: attention on made-up data under the three scales 1, 1/√d_k and 1/d_k, and what each does to the scores.
#pragma once

namespace rootdk::app {

int run_demo();

}  // namespace rootdk::app
