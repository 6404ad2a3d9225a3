// A decoder recorded as a list of ops over bound buffers, replayed for each batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"
#include "types.h"

namespace batchgen {

// Zeroed memory aligned to cache lines, given by the system page by page as it is touched.
class Memory {
  public:
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    Memory& operator=(Memory&&) = delete;

    template <typename T>
    T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_;
    size_t bytes_;
};

enum class Extent { kTokens, kRows };

struct Buffer {
    int width;
    Extent extent;
    Memory data;  // [max rows, width] float32
};

struct Operand {
    int width;
    Extent extent;
    Memory values;  // [max rows, width] float32 or uint8
    Memory scales;  // [max rows] float32 with uint8
    bool quantized;
    Buffer* unquantized = nullptr;  // where attention leaves rows of an int8 operand until all heads are there

    OperandView view() const;
};

struct Linear {
    enum class Form { kFloat, kBfloat16, kInt8 };

    int n, k;
    Form form;
    Memory packed;
    std::vector<float> bias;      // [N] or empty
    std::vector<float> scale;     // [N] with kInt8
    std::vector<int32_t> sum;     // [N] with kInt8
};

struct Cache {
    int kv_heads, head_dim;
    Memory keys, values;
    CacheView view;
};

struct Rotary {
    std::vector<float> cos, sin;  // [positions, D / 2]
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
    Cache& cache(int kv_heads, int head_dim);
    Rotary& rotary(const float* cos, const float* sin, size_t count);

    void embed_f32(const float* table, size_t vocab, float scale, Buffer& out);
    void embed_bf16(const uint16_t* table, size_t vocab, float scale, Buffer& out);
    void norm(Buffer& x, const float* weight, float eps, Operand& out);
    void norm_add(Buffer& x, const float* weight, float eps, Buffer& residual);
    void linear(Operand& x, Linear& weight, Buffer& out, bool add);
    void rotate_store(Buffer& qkv, Cache& cache, Rotary& rotary, const float* q_norm, const float* k_norm, float eps);
    void attention(Buffer& qkv, Cache& cache, float scale, int window, Operand& out);
    void gated(Buffer& gate_up, bool gelu, Operand& out);
    void gather(Buffer& x, Buffer& out);

    void run(const BatchView& batch);
    // chosen[r] = arg-max of logits[r]
    void argmax(Buffer& logits, int rows, int32_t* chosen);

    // Nanoseconds that each kind of op has taken, in order of first use.
    struct Time {
        std::string kind;
        int64_t calls;
        int64_t nanoseconds;
    };
    const std::vector<Time>& times() const { return times_; }

    const KernelTable& kernels() const { return *kernels_; }
    int threads() const { return pool_.size(); }

  private:
    using Op = std::function<void(const BatchView&)>;

    void record(const char* kind, Op op);
    int bound(Extent extent) const;
    Linear& add_linear(int n, int k, Linear::Form form, size_t bytes, const float* bias);
    const float* keep(const float* values, size_t count);

    Bounds bounds_;
    const KernelTable* kernels_;
    ThreadPool pool_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::vector<std::unique_ptr<Operand>> operands_;
    std::vector<std::unique_ptr<Linear>> linears_;
    std::vector<std::unique_ptr<Cache>> caches_;
    std::vector<std::unique_ptr<Rotary>> rotaries_;
    std::vector<std::unique_ptr<Memory>> kept_;
    std::vector<Memory> scratch_;  // one a thread
    size_t scratch_bytes_ = 0;
    std::vector<std::pair<size_t, Op>> ops_;  // index into times_, op
    std::vector<Time> times_;
};

}  // namespace batchgen
