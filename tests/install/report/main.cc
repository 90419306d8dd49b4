#include <rootdk/report/stats_json.h>

int main() { return rootdk::report::stats_from_json(rootdk::report::to_json(rootdk::Stats{.batch = 3})).batch == 3 ? 0 : 1; }
