// The instruction that Hopper's tensor cores are fed with: wgmma, m64 x N x k16, f32 += bf16·bf16 or f16·f16, for the N
// that the kernels use. Inline assembly must name every register, so lists of eight are spelt out once and joined.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rootdk::cuda {

#define ROOTDK_P0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ROOTDK_P1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define ROOTDK_P2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define ROOTDK_P3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define ROOTDK_P4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define ROOTDK_P5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define ROOTDK_P6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define ROOTDK_P7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define ROOTDK_P8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define ROOTDK_P9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define ROOTDK_P10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define ROOTDK_P11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define ROOTDK_P12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define ROOTDK_P13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define ROOTDK_P14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define ROOTDK_P15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define ROOTDK_F0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define ROOTDK_F1 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define ROOTDK_F2 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define ROOTDK_F3 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define ROOTDK_F4 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define ROOTDK_F5 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define ROOTDK_F6 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define ROOTDK_F7 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define ROOTDK_F8 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define ROOTDK_F9 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define ROOTDK_F10 \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define ROOTDK_F11 \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define ROOTDK_F12 \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define ROOTDK_F13 \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define ROOTDK_F14 \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define ROOTDK_F15 \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define ROOTDK_PS1 ROOTDK_P0
#define ROOTDK_FS1 ROOTDK_F0
#define ROOTDK_PS2 ROOTDK_P0 ", " ROOTDK_P1
#define ROOTDK_FS2 ROOTDK_F0, ROOTDK_F1
#define ROOTDK_PS3 ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2
#define ROOTDK_FS3 ROOTDK_F0, ROOTDK_F1, ROOTDK_F2
#define ROOTDK_PS4 ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3
#define ROOTDK_FS4 ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3
#define ROOTDK_PS5 ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3 ", " ROOTDK_P4
#define ROOTDK_FS5 ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3, ROOTDK_F4
#define ROOTDK_PS6 ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3 ", " ROOTDK_P4 ", " ROOTDK_P5
#define ROOTDK_FS6 ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3, ROOTDK_F4, ROOTDK_F5
#define ROOTDK_PS8 \
  ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3 ", " ROOTDK_P4 ", " ROOTDK_P5 ", " ROOTDK_P6 ", " ROOTDK_P7
#define ROOTDK_FS8 ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3, ROOTDK_F4, ROOTDK_F5, ROOTDK_F6, ROOTDK_F7
#define ROOTDK_PS11                                                                                                  \
  ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3 ", " ROOTDK_P4 ", " ROOTDK_P5 ", " ROOTDK_P6 ", " ROOTDK_P7 \
            ", " ROOTDK_P8 ", " ROOTDK_P9 ", " ROOTDK_P10
#define ROOTDK_FS11                                                                                             \
  ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3, ROOTDK_F4, ROOTDK_F5, ROOTDK_F6, ROOTDK_F7, ROOTDK_F8, ROOTDK_F9, \
      ROOTDK_F10
#define ROOTDK_PS16                                                                                                  \
  ROOTDK_P0 ", " ROOTDK_P1 ", " ROOTDK_P2 ", " ROOTDK_P3 ", " ROOTDK_P4 ", " ROOTDK_P5 ", " ROOTDK_P6 ", " ROOTDK_P7 \
            ", " ROOTDK_P8 ", " ROOTDK_P9 ", " ROOTDK_P10 ", " ROOTDK_P11 ", " ROOTDK_P12 ", " ROOTDK_P13            \
            ", " ROOTDK_P14 ", " ROOTDK_P15
#define ROOTDK_FS16                                                                                             \
  ROOTDK_F0, ROOTDK_F1, ROOTDK_F2, ROOTDK_F3, ROOTDK_F4, ROOTDK_F5, ROOTDK_F6, ROOTDK_F7, ROOTDK_F8, ROOTDK_F9, \
      ROOTDK_F10, ROOTDK_F11, ROOTDK_F12, ROOTDK_F13, ROOTDK_F14, ROOTDK_F15

/// S += Q·Kᵀ: both operands from shared memory, both with d contiguous. `add` false overwrites.
template <int N, class T>
struct Scores;

/// O += P·V: P from registers, V from shared memory with d contiguous, that is, transposed.
template <int N, class T>
struct Values;

#define ROOTDK_SCORES(N, LISTS, A, B, C, T, NAME)                                                              \
  template <>                                                                                                  \
  struct Scores<N, T> {                                                                                        \
    static __device__ __forceinline__ void mma(float (&d)[N / 2], std::uint64_t q, std::uint64_t k, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N        \
                   "k16.f32." NAME "." NAME " {" ROOTDK_PS##LISTS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"   \
                   : ROOTDK_FS##LISTS                                                                          \
                   : "l"(q), "l"(k), "r"(add));                                                                \
    }                                                                                                          \
  };
#define ROOTDK_VALUES(N, LISTS, A, B, C, D, E, F, T, NAME)                                                        \
  template <>                                                                                                     \
  struct Values<N, T> {                                                                                           \
    static __device__ __forceinline__ void mma(float (&d)[N / 2], const std::uint32_t* p, std::uint64_t v) {      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N           \
                   "k16.f32." NAME "." NAME " {" ROOTDK_PS##LISTS "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E \
                                                                  ", p, 1, 1, 1;\n}\n"                            \
                   : ROOTDK_FS##LISTS                                                                             \
                   : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"(1));                                 \
    }                                                                                                             \
  };

ROOTDK_SCORES(16, 1, 8, 9, 10, __nv_bfloat16, "bf16")
ROOTDK_SCORES(32, 2, 16, 17, 18, __nv_bfloat16, "bf16")
ROOTDK_SCORES(48, 3, 24, 25, 26, __nv_bfloat16, "bf16")
ROOTDK_SCORES(64, 4, 32, 33, 34, __nv_bfloat16, "bf16")
ROOTDK_SCORES(80, 5, 40, 41, 42, __nv_bfloat16, "bf16")
ROOTDK_SCORES(96, 6, 48, 49, 50, __nv_bfloat16, "bf16")
ROOTDK_SCORES(128, 8, 64, 65, 66, __nv_bfloat16, "bf16")
ROOTDK_SCORES(176, 11, 88, 89, 90, __nv_bfloat16, "bf16")
ROOTDK_VALUES(64, 4, 32, 33, 34, 35, 36, 37, __nv_bfloat16, "bf16")
ROOTDK_VALUES(128, 8, 64, 65, 66, 67, 68, 69, __nv_bfloat16, "bf16")
ROOTDK_VALUES(256, 16, 128, 129, 130, 131, 132, 133, __nv_bfloat16, "bf16")
ROOTDK_SCORES(16, 1, 8, 9, 10, __half, "f16")
ROOTDK_SCORES(32, 2, 16, 17, 18, __half, "f16")
ROOTDK_SCORES(48, 3, 24, 25, 26, __half, "f16")
ROOTDK_SCORES(64, 4, 32, 33, 34, __half, "f16")
ROOTDK_SCORES(80, 5, 40, 41, 42, __half, "f16")
ROOTDK_SCORES(96, 6, 48, 49, 50, __half, "f16")
ROOTDK_SCORES(128, 8, 64, 65, 66, __half, "f16")
ROOTDK_SCORES(176, 11, 88, 89, 90, __half, "f16")
ROOTDK_VALUES(64, 4, 32, 33, 34, 35, 36, 37, __half, "f16")
ROOTDK_VALUES(128, 8, 64, 65, 66, 67, 68, 69, __half, "f16")
ROOTDK_VALUES(256, 16, 128, 129, 130, 131, 132, 133, __half, "f16")

#undef ROOTDK_SCORES
#undef ROOTDK_VALUES

}  // namespace rootdk::cuda
