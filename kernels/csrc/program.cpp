#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace batchgen {
namespace {

constexpr int kPanelColumns = 64;
constexpr size_t kHugePage = size_t{2} << 20;

inline int count_of(Extent extent, const BatchView& batch) {
    return extent == Extent::kTokens ? batch.tokens_count : batch.rows_count;
}

// Pieces small enough to balance the threads, large enough to be worth a hand-over.
inline int grain_of(int count, int threads, int least) {
    return std::max(least, (count + 4 * threads - 1) / (4 * threads));
}

}  // namespace

Memory::Memory(size_t bytes) : data_(nullptr), bytes_(bytes) {
    if (bytes == 0) return;
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
        data_ = nullptr;
        throw std::bad_alloc();
    }
    if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);
}

Memory::~Memory() {
    if (data_) munmap(data_, bytes_);
}

Memory::Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

OperandView Operand::view() const {
    return {width, quantized ? nullptr : values.as<float>(), quantized ? values.as<uint8_t>() : nullptr,
            quantized ? scales.as<float>() : nullptr};
}

Program::Program(Bounds bounds, int threads, const KernelTable* kernels)
    : bounds_(bounds), kernels_(kernels), pool_(threads) {}

int Program::bound(Extent extent) const { return extent == Extent::kTokens ? bounds_.max_tokens : bounds_.max_seqs; }

const float* Program::keep(const float* values, size_t count) {
    if (!values) return nullptr;
    kept_.push_back(std::make_unique<Memory>(count * sizeof(float)));
    std::memcpy(kept_.back()->as<float>(), values, count * sizeof(float));
    return kept_.back()->as<float>();
}

Buffer& Program::buffer(int width, Extent extent) {
    const size_t bytes = sizeof(float) * bound(extent) * static_cast<size_t>(width);
    buffers_.push_back(std::unique_ptr<Buffer>(new Buffer{width, extent, Memory(bytes)}));
    return *buffers_.back();
}

Operand& Program::operand(int width, Extent extent, bool quantized) {
    const size_t rows = bound(extent), each = quantized ? 1 : sizeof(float);
    operands_.push_back(std::unique_ptr<Operand>(new Operand{
        width, extent, Memory(rows * width * each), Memory(quantized ? rows * sizeof(float) : 0), quantized}));
    return *operands_.back();
}

Linear& Program::add_linear(int n, int k, Linear::Form form, size_t bytes, const float* bias) {
    linears_.push_back(std::unique_ptr<Linear>(new Linear{n, k, form, Memory(bytes), {}, {}, {}}));
    Linear& linear = *linears_.back();
    if (bias) linear.bias.assign(bias, bias + n);
    return linear;
}

Linear& Program::linear_f32(const float* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kFloat, kernels_->linear_bytes_f32(n, k), bias);
    kernels_->pack_f32(weight, n, k, linear.packed.as<void>());
    return linear;
}

Linear& Program::linear_bf16(const uint16_t* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kBfloat16, kernels_->linear_bytes_bf16(n, k), bias);
    kernels_->pack_bf16(weight, n, k, linear.packed.as<void>());
    return linear;
}

Linear& Program::linear_i8(const float* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kInt8, kernels_->linear_bytes_i8(n, k), bias);
    linear.scale.resize(n);
    linear.sum.resize(n);
    kernels_->pack_i8(weight, n, k, linear.packed.as<void>(), linear.scale.data(), linear.sum.data());
    return linear;
}

Cache& Program::cache(int kv_heads, int head_dim) {
    const size_t bytes = sizeof(float) * bounds_.num_blocks * bounds_.block_size * kv_heads * size_t(head_dim);
    caches_.push_back(std::unique_ptr<Cache>(new Cache{kv_heads, head_dim, Memory(bytes), Memory(bytes), {}}));
    Cache& cache = *caches_.back();
    cache.view = {bounds_.num_blocks, bounds_.block_size, kv_heads, head_dim, cache.keys.as<float>(),
                  cache.values.as<float>()};
    return cache;
}

Rotary& Program::rotary(const float* cos, const float* sin, size_t count) {
    rotaries_.push_back(std::make_unique<Rotary>(Rotary{{cos, cos + count}, {sin, sin + count}}));
    return *rotaries_.back();
}

void Program::record(const char* kind, Op op) {
    size_t index = 0;
    while (index < times_.size() && times_[index].kind != kind) ++index;
    if (index == times_.size()) times_.push_back({kind, 0, 0});
    ops_.emplace_back(index, std::move(op));
}

void Program::embed_f32(const float* table, size_t vocab, float scale, Buffer& out) {
    const float* kept = keep(table, vocab * out.width);
    record("embed", [this, kept, scale, &out](const BatchView& batch) {
        kernels_->embed_f32(kept, batch.tokens, out.width, scale, out.data.as<float>(), 0, batch.tokens_count);
    });
}

void Program::embed_bf16(const uint16_t* table, size_t vocab, float scale, Buffer& out) {
    kept_.push_back(std::make_unique<Memory>(vocab * out.width * sizeof(uint16_t)));
    uint16_t* kept = kept_.back()->as<uint16_t>();
    std::memcpy(kept, table, vocab * out.width * sizeof(uint16_t));
    record("embed", [this, kept, scale, &out](const BatchView& batch) {
        kernels_->embed_bf16(kept, batch.tokens, out.width, scale, out.data.as<float>(), 0, batch.tokens_count);
    });
}

void Program::norm(Buffer& x, const float* weight, float eps, Operand& out) {
    const float* kept = keep(weight, x.width);
    record("norm", [this, kept, eps, &x, &out](const BatchView& batch) {
        const int count = count_of(x.extent, batch);
        pool_.parallel_for(count, grain_of(count, threads(), 8), [&](int, int begin, int end) {
            kernels_->norm(x.data.as<float>(), kept, x.width, eps, out.view(), begin, end);
        });
    });
}

void Program::norm_add(Buffer& x, const float* weight, float eps, Buffer& residual) {
    const float* kept = keep(weight, x.width);
    record("norm", [this, kept, eps, &x, &residual](const BatchView& batch) {
        const int count = count_of(x.extent, batch);
        pool_.parallel_for(count, grain_of(count, threads(), 8), [&](int, int begin, int end) {
            kernels_->norm_add(x.data.as<float>(), kept, x.width, eps, residual.data.as<float>(), begin, end);
        });
    });
}

void Program::linear(Operand& x, Linear& weight, Buffer& out, bool add) {
    const char* kind = x.extent == Extent::kRows ? "head" : "linear";
    record(kind, [this, &x, &weight, &out, add](const BatchView& batch) {
        const int m = count_of(x.extent, batch);
        if (m == 0) return;
        const int panels = (weight.n + kPanelColumns - 1) / kPanelColumns;
        const float* bias = weight.bias.empty() ? nullptr : weight.bias.data();
        const OperandView left = x.view();
        float* to = out.data.as<float>();
        pool_.parallel_for(panels, grain_of(panels, 2 * threads(), 1), [&](int, int begin, int end) {
            switch (weight.form) {
                case Linear::Form::kFloat:
                    kernels_->linear_f32(left.f32, m, weight.k, weight.packed.as<void>(), bias, to, weight.n, begin,
                                         end, add);
                    break;
                case Linear::Form::kBfloat16:
                    kernels_->linear_bf16(left.f32, m, weight.k, weight.packed.as<void>(), bias, to, weight.n, begin,
                                          end, add);
                    break;
                case Linear::Form::kInt8:
                    kernels_->linear_i8(left.u8, left.scale, m, weight.k, weight.packed.as<void>(),
                                        weight.scale.data(), weight.sum.data(), bias, to, weight.n, begin, end, add);
            }
        });
    });
}

void Program::rotate_store(Buffer& qkv, Cache& cache, Rotary& rotary, const float* q_norm, const float* k_norm,
                           float eps) {
    const float* q_weight = keep(q_norm, cache.head_dim);
    const float* k_weight = keep(k_norm, cache.head_dim);
    const int q_heads = qkv.width / cache.head_dim - 2 * cache.kv_heads;
    record("rotate_store", [=, this, &qkv, &cache, &rotary](const BatchView& batch) {
        const int count = batch.tokens_count;
        pool_.parallel_for(count, grain_of(count, threads(), 8), [&](int, int begin, int end) {
            kernels_->rotate_store(qkv.data.as<float>(), q_heads, cache.view, rotary.cos.data(), rotary.sin.data(),
                                   q_weight, k_weight, eps, batch, begin, end);
        });
    });
}

void Program::attention(Buffer& qkv, Cache& cache, float scale, int window, Operand& out) {
    const int q_heads = out.width / cache.head_dim;
    const size_t needed = kernels_->attention_scratch(q_heads, cache.view);
    if (needed > scratch_bytes_) {
        scratch_.clear();
        for (int i = 0; i < threads(); ++i) scratch_.emplace_back(needed);
        scratch_bytes_ = needed;
    }
    if (out.quantized && !out.unquantized) out.unquantized = &buffer(out.width, Extent::kTokens);
    float* rows = out.quantized ? out.unquantized->data.as<float>() : out.values.as<float>();
    record("attention", [=, this, &qkv, &cache, &out](const BatchView& batch) {
        const int items = kernels_->attention_items(batch, cache.kv_heads);
        pool_.parallel_for(items, std::max(1, items / (16 * threads())), [&](int worker, int begin, int end) {
            kernels_->attention(qkv.data.as<float>(), q_heads, cache.view, scale, window, batch, rows,
                                scratch_[worker].as<void>(), begin, end);
        });
        if (!out.quantized) return;
        const OperandView to = out.view();
        pool_.parallel_for(batch.tokens_count, grain_of(batch.tokens_count, threads(), 8),
                           [&](int, int begin, int end) {
                               for (int t = begin; t < end; ++t)
                                   kernels_->quantize_row(rows + size_t(t) * to.width, to.width,
                                                          to.u8 + size_t(t) * to.width, to.scale + t);
                           });
    });
}

void Program::gated(Buffer& gate_up, bool gelu, Operand& out) {
    record("gated", [=, this, &gate_up, &out](const BatchView& batch) {
        const int count = count_of(gate_up.extent, batch);
        const auto op = gelu ? kernels_->gated_gelu_tanh : kernels_->gated_silu;
        pool_.parallel_for(count, grain_of(count, threads(), 4), [&](int, int begin, int end) {
            op(gate_up.data.as<float>(), out.view(), begin, end);
        });
    });
}

void Program::gather(Buffer& x, Buffer& out) {
    record("gather", [&x, &out](const BatchView& batch) {
        const size_t bytes = sizeof(float) * x.width;
        for (int r = 0; r < batch.rows_count; ++r)
            std::memcpy(out.data.as<float>() + size_t(r) * x.width,
                        x.data.as<float>() + size_t(batch.rows[r]) * x.width, bytes);
    });
}

void Program::run(const BatchView& batch) {
    auto last = std::chrono::steady_clock::now();
    for (auto& [index, op] : ops_) {
        op(batch);
        const auto now = std::chrono::steady_clock::now();
        times_[index].calls += 1;
        times_[index].nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(now - last).count();
        last = now;
    }
}

void Program::argmax(Buffer& logits, int rows, int32_t* chosen) {
    pool_.parallel_for(rows, 1, [&](int, int begin, int end) {
        for (int r = begin; r < end; ++r)
            chosen[r] = kernels_->argmax(logits.data.as<float>() + size_t(r) * logits.width, logits.width);
    });
}

}  // namespace batchgen
