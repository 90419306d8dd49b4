// The command: its verbs, in the order in which the help lists them.
#include "command_line.h"
#include "verbs.h"

int main(int argc, char** argv) {
  using namespace rootdk::app;
  return run_command({tour_verb(), explain_verb(), variance_verb(), phase_verb(), gradient_verb(), precision_verb(),
                      init_verb(), train_verb(), playground_verb(), whatif_verb(), attend_verb(), audit_verb(),
                      plan_verb(), rules_verb(), doctor_verb(), bench_verb()},
                     argc, argv);
}
