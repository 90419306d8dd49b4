// More of wgmma, for backward: products that overwrite, whose registers nothing need have written before (a compiler
// that sees them written while other products are in flight puts all products in series), and one with both operands
// transposed.
#pragma once

#include "cuda/hopper/wgmma.cuh"

namespace rootdk::cuda {

#define ROOTDK_N0 "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
#define ROOTDK_N1 "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15])
#define ROOTDK_N2 "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23])
#define ROOTDK_N3 "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
#define ROOTDK_N4 "=f"(d[32]), "=f"(d[33]), "=f"(d[34]), "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39])
#define ROOTDK_N5 "=f"(d[40]), "=f"(d[41]), "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47])
#define ROOTDK_N6 "=f"(d[48]), "=f"(d[49]), "=f"(d[50]), "=f"(d[51]), "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55])
#define ROOTDK_N7 "=f"(d[56]), "=f"(d[57]), "=f"(d[58]), "=f"(d[59]), "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
#define ROOTDK_NS4 ROOTDK_N0, ROOTDK_N1, ROOTDK_N2, ROOTDK_N3
#define ROOTDK_NS8 ROOTDK_N0, ROOTDK_N1, ROOTDK_N2, ROOTDK_N3, ROOTDK_N4, ROOTDK_N5, ROOTDK_N6, ROOTDK_N7

/// S = Q·Kᵀ of the first 16 elements, as Scores.
template <int N, class Element>
struct FirstScores;

/// D[64][64] = Σ_k A[k][64]·B[k][64], where k are the rows in shared memory, as in dQ = dS·K; and the same added.
template <class Element>
struct Transposed;

#define ROOTDK_FIRST_SCORES(N, LISTS, A, B, Element, NAME)                                                        \
  template <>                                                                                                     \
  struct FirstScores<N, Element> {                                                                                \
    static __device__ __forceinline__ void mma(float (&d)[N / 2], std::uint64_t q, std::uint64_t k) {             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME \
                   "." NAME " {" ROOTDK_PS##LISTS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                      \
                   : ROOTDK_NS##LISTS                                                                             \
                   : "l"(q), "l"(k));                                                                             \
    }                                                                                                             \
  };
#define ROOTDK_TRANSPOSED(Element, NAME)                                                                               \
  template <>                                                                                                          \
  struct Transposed<Element> {                                                                                         \
    static __device__ __forceinline__ void first(float (&d)[32], std::uint64_t a, std::uint64_t b) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME \
                   " {" ROOTDK_PS4 "}, %32, %33, p, 1, 1, 1, 1;\n}\n"                                                  \
                   : ROOTDK_NS4                                                                                        \
                   : "l"(a), "l"(b));                                                                                  \
    }                                                                                                                  \
    static __device__ __forceinline__ void add(float (&d)[32], std::uint64_t a, std::uint64_t b) {                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME \
                   " {" ROOTDK_PS4 "}, %32, %33, p, 1, 1, 1, 1;\n}\n"                                                  \
                   : ROOTDK_FS4                                                                                        \
                   : "l"(a), "l"(b));                                                                                  \
    }                                                                                                                  \
  };

ROOTDK_FIRST_SCORES(64, 4, 32, 33, __nv_bfloat16, "bf16")
ROOTDK_FIRST_SCORES(128, 8, 64, 65, __nv_bfloat16, "bf16")
ROOTDK_TRANSPOSED(__nv_bfloat16, "bf16")
ROOTDK_FIRST_SCORES(64, 4, 32, 33, __half, "f16")
ROOTDK_FIRST_SCORES(128, 8, 64, 65, __half, "f16")
ROOTDK_TRANSPOSED(__half, "f16")

#undef ROOTDK_FIRST_SCORES
#undef ROOTDK_TRANSPOSED

}  // namespace rootdk::cuda
