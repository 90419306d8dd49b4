/* The C ABI from a program in strict C99, through the library as it is installed. */
#include "rootdk/c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                               \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "line %d: " #condition " (%s)\n", __LINE__, rootdk_last_error()); \
      return 1;                                                                         \
    }                                                                                   \
  } while (0)

int main(void) {
  /* One query, two keys at the same score: the output is the mean of the values, the lse is ln 2. */
  const float q[2] = {1, 0}, k[4] = {0, 1, 0, 2}, v[2] = {1, 3};
  float o[1] = {0}, lse[1] = {0};
  rootdk_inputs inputs = {0};
  rootdk_outputs outputs = {0};
  rootdk_problem problem;
  rootdk_head_stats head;
  char* words;
  void* workspace;
  size_t size = 0;

  inputs.q = rootdk_row_major(q, ROOTDK_F32, 1, 1, 1, 2);
  inputs.k = rootdk_row_major(k, ROOTDK_F32, 1, 1, 2, 2);
  inputs.v = rootdk_row_major(v, ROOTDK_F32, 1, 1, 2, 1);
  outputs.o = rootdk_row_major(o, ROOTDK_F32, 1, 1, 1, 1);
  outputs.lse = rootdk_row_major(lse, ROOTDK_F32, 1, 1, 1, 1);
  outputs.head_stats = &head;
  outputs.head_stats_count = 1;

  EXPECT(rootdk_forward(NULL, &inputs, &outputs, NULL, 0) == ROOTDK_OK);
  EXPECT(fabsf(o[0] - 2.0f) < 1e-6f);
  EXPECT(fabsf(lse[0] - 0.6931472f) < 1e-6f);
  EXPECT(head.row_count == 1 && head.raw_max == 0.0f && fabs(head.mean_p_max - 0.5) < 1e-6);

  rootdk_problem_init(&problem);
  EXPECT(rootdk_workspace_size(&problem, &inputs, ROOTDK_FORWARD, &size) == ROOTDK_OK);
  workspace = malloc(size + 1);
  o[0] = 0;
  EXPECT(workspace != NULL);
  EXPECT(rootdk_forward(&problem, &inputs, &outputs, workspace, size + 1) == ROOTDK_OK);
  EXPECT(fabsf(o[0] - 2.0f) < 1e-6f);
  free(workspace);

  EXPECT(rootdk_explain(&problem, &inputs, ROOTDK_FORWARD, NULL, 0, &size) == ROOTDK_OK);
  words = malloc(size);
  EXPECT(words != NULL);
  EXPECT(rootdk_explain(&problem, &inputs, ROOTDK_FORWARD, words, size, NULL) == ROOTDK_OK);
  EXPECT(strlen(words) == size - 1);
  free(words);

  o[0] = 7;
  inputs.k.shape[3] = 1;
  EXPECT(rootdk_forward(&problem, &inputs, &outputs, NULL, 0) == ROOTDK_INVALID_ARGUMENT);
  EXPECT(strncmp(rootdk_last_error(), "k: ", 3) == 0);
  EXPECT(o[0] == 7);
  return 0;
}
