// Any processor: the baseline of the architecture, vectorised by the compiler.
#define BATCHGEN_PORTABLE
#include <math.h>
#include <string.h>

#include "kernels.h"

// Everything inside is static: nothing compiled with this unit's flags can be linked into another unit.
namespace batchgen {
namespace portable {
static const char kName[] = "portable";
#include "table.inc"
}  // namespace portable

const KernelTable* kernels_portable() { return &portable::table; }

}  // namespace batchgen
