/* Causal attention from C, with the statistics of each head. */
#include <rootdk/c.h>

#include <math.h>
#include <stdio.h>

enum { kHeads = 2, kLength = 32, kDim = 16 };

static float q[kHeads * kLength * kDim], k[kHeads * kLength * kDim], v[kHeads * kLength * kDim];
static float o[kHeads * kLength * kDim];

int main(void) {
  rootdk_problem problem;
  rootdk_inputs inputs = {0};
  rootdk_outputs outputs = {0};
  rootdk_head_stats heads[kHeads];

  for (int i = 0; i < kHeads * kLength * kDim; ++i) {
    q[i] = sinf(1.1f * (float)i);
    k[i] = sinf(1.3f * (float)i);
    v[i] = sinf(1.7f * (float)i);
  }

  rootdk_problem_init(&problem);
  problem.causal = 1;
  inputs.q = rootdk_row_major(q, ROOTDK_F32, 1, kHeads, kLength, kDim);
  inputs.k = rootdk_row_major(k, ROOTDK_F32, 1, kHeads, kLength, kDim);
  inputs.v = rootdk_row_major(v, ROOTDK_F32, 1, kHeads, kLength, kDim);
  outputs.o = rootdk_row_major(o, ROOTDK_F32, 1, kHeads, kLength, kDim);
  outputs.head_stats = heads;
  outputs.head_stats_count = kHeads;

  if (rootdk_forward(&problem, &inputs, &outputs, NULL, 0) != ROOTDK_OK) {
    fprintf(stderr, "%s\n", rootdk_last_error());
    return 1;
  }
  printf("rootdk %s\n", rootdk_version());
  for (int h = 0; h < kHeads; ++h)
    printf("head %d: largest score %.3f, mean largest probability %.3f\n", h, heads[h].score_max, heads[h].mean_p_max);
  return 0;
}
