// x86-64-v4 with AVX512-VNNI.
#define BATCHGEN_AVX512
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

// Everything inside is static: nothing compiled with this unit's flags can be linked into another unit.
namespace batchgen {
namespace avx512vnni {
static const char kName[] = "avx512vnni";
#include "table.inc"
}  // namespace avx512vnni

const KernelTable* kernels_avx512vnni() {
    const bool usable = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
                        __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    return usable ? &avx512vnni::table : nullptr;
}

}  // namespace batchgen
