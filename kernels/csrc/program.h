// A decoder recorded as a list of ops over bound buffers, replayed for each batch.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "thread_pool.h"
#include "types.h"

namespace batchgen {

enum class Extent { kTokens, kRows };

struct Buffer {
    int width;
    Extent extent;
    Memory data;  // [max rows, width] float32

    float* values() const { return data.as<float>(); }
    size_t rows() const { return data.bytes() / (sizeof(float) * width); }
};

struct Operand {
    int width;
    Extent extent;
    bool quantized;
    Memory values;  // [max rows, width] float32 or uint8
    Memory scales;  // [max rows] float32 with uint8
    Buffer* unquantized = nullptr;  // where attention leaves rows of an int8 operand until all their heads are there

    OperandView view() const;
};

struct Linear {
    enum class Form { kFloat, kBfloat16, kInt8 };

    int n, k;
    Form form;
    void* packed;
    const float* bias;  // [N] or null
    float* scale;       // [N] with kInt8
    int32_t* sum;       // [N] with kInt8
};

struct Cache {
    Memory keys, values;
    Memory key_scales, value_scales;  // empty for float32
    CacheView view;
};

struct Rotary {
    int positions;
    const float *cos, *sin;  // [positions, D / 2]
};

// The upper bounds of batches: ops.Shape.
struct Bounds {
    int max_tokens, max_seqs, num_blocks, block_size;
};

class Program {
  public:
    Program(Bounds bounds, int threads, const KernelTable* kernels);

    Buffer& buffer(int width, Extent extent);
    Operand& operand(int width, Extent extent, bool quantized);
    Linear& linear_f32(const float* weight, int n, int k, const float* bias);
    Linear& linear_bf16(const uint16_t* weight, int n, int k, const float* bias);
    Linear& linear_i8(const float* weight, int n, int k, const float* bias);
    Cache& cache(int kv_heads, int head_dim, bool quantized);
    Rotary& rotary(const float* cos, const float* sin, int positions, int pairs);

    void embed_f32(const float* table, int vocab, float scale, Buffer& out);
    void embed_bf16(const uint16_t* table, int vocab, float scale, Buffer& out);
    void norm(Buffer& x, const float* weight, float eps, Operand& out);
    void norm_add(Buffer& x, const float* weight, float eps, Buffer& residual);
    void linear(Operand& x, Linear& weight, Buffer& out, bool add);
    void rotate_store(Buffer& qkv, Cache& cache, Rotary& rotary, const float* q_norm, const float* k_norm, float eps);
    void attention(Buffer& qkv, Cache& cache, float scale, int window, Operand& out);
    void gated(Buffer& gate_up, bool gelu, Operand& out);
    void gather(Buffer& x, Buffer& out);

    // Throws std::invalid_argument for a batch that would reach outside of what the program owns.
    void run(const BatchView& batch);
    // chosen[r] = a token for logits[r]
    void sample(Buffer& logits, const SamplingView& rows, int32_t* chosen);
    void logprobs(Buffer& logits, const LogprobView& rows);

    // How long each kind of op has taken, in order of first use.
    struct Time {
        std::string kind;
        int64_t calls;
        int64_t nanoseconds;
    };
    const std::vector<Time>& times() const { return times_; }

    const KernelTable& kernels() const { return *kernels_; }

  private:
    using Op = std::function<void(const BatchView&)>;

    void record(const char* kind, Op op);
    int bound(Extent extent) const;
    Linear& add_linear(int n, int k, Linear::Form form, size_t bytes, const float* bias);
    template <typename Rows>
    void for_rows(int count, int least, const Rows& rows);
    void check(const BatchView& batch) const;
    void need_scratch(size_t bytes);
    int cut_tiles(const BatchView& batch, int most);
    int32_t sample_row(const float* logits, int vocab, const SamplingView& rows, int r, char* scratch) const;

    Bounds bounds_;
    const KernelTable* kernels_;
    ThreadPool pool_;
    Arena arena_;  // weights and tables
    // Deques: ops hold references, and a deque's elements never move.
    std::deque<Buffer> buffers_;
    std::deque<Operand> operands_;
    std::deque<Linear> linears_;
    std::deque<Cache> caches_;
    std::deque<Rotary> rotaries_;
    std::vector<Memory> scratch_;  // one a thread
    std::vector<TokenTile> tiles_;  // of the batch, as cut last
    int tiles_count_ = 0;
    int tiles_most_ = 0;  // tokens of a tile; 0 where the batch is not cut yet
    int vocab_;      // tokens of a batch are below this
    int positions_;  // and positions below this
    std::vector<std::pair<size_t, Op>> ops_;  // index into times_, op
    std::vector<Time> times_;
};

}  // namespace batchgen
