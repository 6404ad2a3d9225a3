// How a linear is cut for threads.
#pragma once

#include <algorithm>
#include <cstddef>

namespace batchgen {

constexpr int kRowsOfUnit = 24;
constexpr size_t kBytesOfChunk = size_t{384} << 10;  // of x: a part of an L2 cache

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

// A linear as a row of units, each of some rows of x over one panel: chunks of rows that stay in an L2 cache one after
// the other, in a chunk panel after panel, in a panel from its first rows to its last. A piece of it reads few panels,
// and nobody else reads them at that time but for the ones at its ends.
struct Units {
    int m, panels, chunks, chunk_rows, rows, per_panel;

    Units(int m, int panels, size_t row_bytes) : m(m), panels(panels) {
        const int most = std::max<int>(kRowsOfUnit, kBytesOfChunk / row_bytes);
        chunks = divide_up(m, most);
        chunk_rows = divide_up(m, chunks);
        per_panel = divide_up(chunk_rows, kRowsOfUnit);
        rows = divide_up(chunk_rows, per_panel);
    }

    int count() const { return chunks * panels * per_panel; }

    // run(m0, m, panel) for the units [begin, end), those of one panel at once.
    template <typename Run>
    void each(int begin, int end, const Run& run) const {
        while (begin < end) {
            const int chunk = begin / (panels * per_panel), first = begin % per_panel;
            const int stop = std::min(first + end - begin, per_panel);
            const int from = chunk * chunk_rows, m0 = from + first * rows;
            const int m1 = std::min({m, from + chunk_rows, from + stop * rows});
            if (m0 < m1) run(m0, m1 - m0, begin / per_panel % panels);
            begin += stop - first;
        }
    }
};

}  // namespace batchgen
