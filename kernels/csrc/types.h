// Views that the ops work on. Nothing here owns memory. All arrays are row-major; T, S, R as in batchgen_kernels/ops.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace batchgen {

// One step's ragged batch: the arrays of ops.Batch.
struct BatchView {
    int tokens_count;             // T
    int sequences;                // S
    int rows_count;               // R
    int table_width;              // W
    const int32_t* tokens;        // [T]
    const int32_t* positions;     // [T]
    const int32_t* slots;         // [T]
    const int32_t* query_start;   // [S + 1]
    const int32_t* context_lens;  // [S]
    const int32_t* block_tables;  // [S, W]
    const int32_t* rows;          // [R]
};

// What is done to the logits of one row: see ops.LogitChanges.
struct RowChanges {
    const uint32_t* mask;  // [ceil(V / 32)] or null
    int biased;
    const int32_t* bias_ids;  // [biased]
    const float* bias;
    int seen;
    const int32_t* context_ids;  // [seen]
    const int32_t* context_counts;
    float repetition, frequency, presence;

    bool any() const { return mask || biased || seen; }
};

// The arrays of ops.LogitChanges.
struct ChangesView {
    int mask_words;               // ceil(V / 32)
    const int32_t* mask_of;       // [R]
    const uint32_t* masks;        // [M, mask_words]
    const int32_t* bias_start;    // [R + 1]
    const int32_t* bias_ids;      // [B]
    const float* bias;            // [B]
    const int32_t* context_start; // [R + 1]
    const int32_t* context_ids;   // [C]
    const int32_t* context_counts;  // [C]
    const float *repetition, *frequency, *presence;  // [R]

    RowChanges row(int r) const {
        const int b = bias_start[r], c = context_start[r];
        return {mask_of[r] < 0 ? nullptr : masks + static_cast<size_t>(mask_of[r]) * mask_words,
                bias_start[r + 1] - b, bias_ids + b, bias + b, context_start[r + 1] - c, context_ids + c,
                context_counts + c, repetition[r], frequency[r], presence[r]};
    }
};

// Where a tile of consecutive tokens begins, and the sequence of that token.
struct TokenTile {
    int token;
    int sequence;
};

// How to choose the next token of each row: the arrays of ops.SamplingRows, all [R].
struct SamplingView {
    int rows;
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const uint64_t* seed;
    const int64_t* position;
    const ChangesView* changes;  // or null
};

// ops.LogprobRows, and where the arrays of ops.Logprobs go.
struct LogprobView {
    int count, top;
    const int32_t* row;    // [Q]
    const int32_t* token;  // [Q]
    float* logprob;        // [Q]
    int32_t* rank;         // [Q]
    int32_t* top_ids;      // [Q, K]
    float* top_logprobs;   // [Q, K]
};

// The left side of a linear. Exactly one form is present: f32, or u8 with scale.
struct OperandView {
    int width;       // K
    float* f32;      // [rows, K] or null
    uint8_t* u8;     // [rows, K] or null: round(rotated / scale) + 128
    float* scale;    // [rows] with u8
};

// Keys and values of one layer. A block's keys lie transposed, so that one vector holds one component of many
// positions and scores need no horizontal sums; its values lie position by position. Elements are float, or int8 where
// there are scales (ops.Program.kv_cache), and then four components or positions lie side by side and keys are k + 128.
struct CacheView {
    int num_blocks;
    int block_size;
    int kv_heads;         // Hk
    int head_dim;         // D
    void* keys;           // [num_blocks, Hk, D, block_size] or [num_blocks, Hk, D / 4, block_size, 4] uint8
    void* values;         // [num_blocks, Hk, block_size, D] or [num_blocks, Hk, block_size / 4, D, 4] int8
    float* key_scales;    // [num_blocks, Hk, block_size] or null
    float* value_scales;  // likewise
};

}  // namespace batchgen
