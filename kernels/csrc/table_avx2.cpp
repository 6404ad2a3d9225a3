// x86-64-v3: AVX2 and FMA.
#define BATCHGEN_AVX2
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

// Everything inside is static: nothing compiled with this unit's flags can be linked into another unit.
namespace batchgen {
namespace avx2 {
static const char kName[] = "avx2";
#include "table.inc"
}  // namespace avx2

const KernelTable* kernels_avx2() {
    // libgcc's and compiler-rt's checks include the operating system's support for the wide registers.
    const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    return usable ? &avx2::table : nullptr;
}

}  // namespace batchgen
