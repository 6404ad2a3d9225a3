// The table of kernels that one instruction set offers. One translation unit per instruction set fills it; the module
// picks one table at load. Every function computes a half-open range of its rows or items, so that a caller can split
// the work over threads; no result depends on how it is split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace batchgen {

struct KernelTable {
    const char* name;  // avx512vnni, avx2, portable

    // ---- linear (linear.inc, linear_int8.inc) ----------------------------------------------------------------------
    // Packed panels of 64 output columns. Each output element is one fixed chain of multiply-adds over k = 0..K-1
    // (float32), or an exact int32 sum (int8), whatever M, the tile or the thread.
    // float32: packed [N/64][K][64] float; bf16: the same in uint16; int8: [N/64][K/4][64][4] int8.
    size_t (*linear_bytes_f32)(int n, int k);
    size_t (*linear_bytes_bf16)(int n, int k);
    size_t (*linear_bytes_i8)(int n, int k);
    void (*pack_f32)(const float* weight, int n, int k, void* packed);
    void (*pack_bf16)(const uint16_t* weight, int n, int k, void* packed);
    // rotates each 64-wide block of k, quantises per output row n; scale [N], sum [N] = sum of the int8 weights of a row
    void (*pack_i8)(const float* weight, int n, int k, void* packed, float* scale, int32_t* sum);
    // out[m, n] (+)= x[m] . w[n] + bias[n] for m in [0, M), panels [panel_begin, panel_end); bias may be null.
    // add: whether to add to out instead of overwriting it. out has row stride N.
    void (*linear_f32)(const float* x, int m, int k, const void* packed, const float* bias, float* out, int n, int panel_begin, int panel_end, bool add);
    void (*linear_bf16)(const float* x, int m, int k, const void* packed, const float* bias, float* out, int n, int panel_begin, int panel_end, bool add);
    void (*linear_i8)(const uint8_t* x, const float* x_scale, int m, int k, const void* packed, const float* w_scale, const int32_t* w_sum, const float* bias, float* out, int n, int panel_begin, int panel_end, bool add);

    // ---- operand (operand.inc) -------------------------------------------------------------------------------------
    // Hadamard-rotate each 64-wide block of x [width] in place (orthonormal), then q = round(x / scale) + 128, scale = max|x| / 127.
    void (*quantize_row)(float* x, int width, uint8_t* q, float* scale);

    // ---- rows (rows.inc) -------------------------------------------------------------------------------------------
    void (*embed_f32)(const float* table, const int32_t* tokens, int width, float scale, float* out, int begin, int end);
    void (*embed_bf16)(const uint16_t* table, const int32_t* tokens, int width, float scale, float* out, int begin, int end);
    void (*norm)(const float* x, const float* weight, int width, float eps, OperandView out, int begin, int end);
    void (*norm_add)(const float* x, const float* weight, int width, float eps, float* residual, int begin, int end);
    void (*gated_silu)(const float* gate_up, OperandView out, int begin, int end);
    void (*gated_gelu_tanh)(const float* gate_up, OperandView out, int begin, int end);
    // qkv [T, (Hq + 2 Hk) D]; cos, sin [positions, D/2]; norms [D] or null
    void (*rotate_store)(float* qkv, int q_heads, CacheView cache, const float* cos, const float* sin, const float* q_norm, const float* k_norm, float eps, BatchView batch, int begin, int end);

    // ---- attention (attention.inc) ---------------------------------------------------------------------------------
    // attention_tiles cuts a batch into tiles of up to `most` tokens and writes them and an end, T + 1 at most; an item
    // is a tile over one key/value head. scratch is one thread's workspace of attention_scratch bytes. window 0: none.
    // qkv holds rotated queries in its first Hq D columns, row stride (Hq + 2 Hk) D.
    int (*attention_tiles)(BatchView batch, int block_size, int most, TokenTile* tiles);
    size_t (*attention_scratch)(int q_heads, CacheView cache);
    void (*attention)(const float* qkv, int q_heads, CacheView cache, float scale, int window, BatchView batch, const TokenTile* tiles, float* out, void* scratch, int begin, int end);

    // ---- sampling (sampling.inc, logits.inc) -----------------------------------------------------------------------
    // One row as ops.Program.sample defines it; scratch: vocab * 8 bytes.
    int32_t (*sample)(const float* logits, int vocab, float temperature, int top_k, float top_p, float min_p, uint64_t seed, int64_t position, void* scratch);
    // out [vocab] = the logits of one row as the changes leave them; returns whether any is above minus infinity.
    bool (*change_logits)(const float* logits, int vocab, RowChanges changes, float* out);
    // Entry q of the view; scratch: vocab * 8 bytes.
    void (*read_logprobs)(const float* logits, int vocab, LogprobView view, int q, void* scratch);

    // ---- peak (peak.inc) -------------------------------------------------------------------------------------------
    // Multiply-adds on registers alone; sink [16]. Each returns the operations done, 0 where no instruction does that.
    int64_t (*peak_f32)(int64_t steps, float* sink);
    int64_t (*peak_i8)(int64_t steps, float* sink);
};

// Each returns null where this build or this machine lacks the instruction set.
const KernelTable* kernels_avx512vnni();
const KernelTable* kernels_avx2();
const KernelTable* kernels_portable();

}  // namespace batchgen
