// The table of encodings: name, values per block, bytes per block.
#include "rootdk/checkpoint/encoding.h"

#include <array>

namespace rootdk::checkpoint {

namespace {

// In the order of the enumeration; encoding_test checks names against it.
constexpr std::array<EncodingTraits, kEncodings> kTraits = {{
    {"F64", 1, 8, true},         {"F32", 1, 4, true},          {"F16", 1, 2, true},          {"BF16", 1, 2, true},
    {"I64", 1, 8, true},         {"I32", 1, 4, true},          {"I16", 1, 2, true},          {"I8", 1, 1, true},
    {"U64", 1, 8, true},         {"U32", 1, 4, true},          {"U16", 1, 2, true},          {"U8", 1, 1, true},
    {"BOOL", 1, 1, true},        {"Q8_0", 32, 34, true},       {"Q4_0", 32, 18, true},       {"Q4_1", 32, 20, true},
    {"Q5_0", 32, 22, true},      {"Q5_1", 32, 24, true},       {"Q4_K", 256, 144, true},     {"Q5_K", 256, 176, true},
    {"Q6_K", 256, 210, true},    {"C64", 1, 8, false},         {"F8_E4M3", 1, 1, false},     {"F8_E5M2", 1, 1, false},
    {"F8_E8M0", 1, 1, false},    {"F8_E4M3FNUZ", 1, 1, false}, {"F8_E5M2FNUZ", 1, 1, false}, {"F6_E2M3", 4, 3, false},
    {"F6_E3M2", 4, 3, false},    {"F4", 2, 1, false},          {"Q2_K", 256, 84, false},     {"Q3_K", 256, 110, false},
    {"IQ1_S", 256, 50, false},   {"IQ1_M", 256, 56, false},    {"IQ2_XXS", 256, 66, false},  {"IQ2_XS", 256, 74, false},
    {"IQ2_S", 256, 82, false},   {"IQ3_XXS", 256, 98, false},  {"IQ3_S", 256, 110, false},   {"IQ4_NL", 32, 18, false},
    {"IQ4_XS", 256, 136, false}, {"TQ1_0", 256, 54, false},    {"TQ2_0", 256, 66, false},    {"MXFP4", 32, 17, false},
    {"NVFP4", 64, 36, false},    {"Q1_0", 128, 18, false},
}};

}  // namespace

const EncodingTraits& traits(Encoding encoding) { return kTraits[static_cast<std::size_t>(encoding)]; }

}  // namespace rootdk::checkpoint
