#include "program.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "linear_units.h"

namespace batchgen {
namespace {

constexpr int kPanelColumns = 64;
constexpr int kPiecesPerThread = 4;
constexpr int kLeastUnitsOfPiece = 8;
constexpr int kTilesPerThread = 4;
constexpr int kRowsOfTile = 32;
constexpr size_t kSampleScratch = 8;  // bytes a token of the vocabulary

int count_of(Extent extent, const BatchView& batch) {
    return extent == Extent::kTokens ? batch.tokens_count : batch.rows_count;
}

bool all_below(const int32_t* values, int count, int bound) {
    return std::all_of(values, values + count, [=](int32_t v) { return v >= 0 && v < bound; });
}

void demand(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("batch: ") + what);
}

// The lowest token that a mask allows, 0 where it is null or allows none.
int32_t lowest_allowed(const uint32_t* mask, int vocab) {
    for (int i = 0; mask && i < vocab; ++i)
        if (mask[i / 32] >> (i % 32) & 1) return i;
    return 0;
}

// One piece of a linear: rows [m0, m0 + m) of x over one panel.
void run_linear(const KernelTable& kernels, const OperandView& x, const Linear& w, float* out, int m0, int m, int panel,
                bool add) {
    const size_t skipped = static_cast<size_t>(m0) * w.k;
    float* to = out + static_cast<size_t>(m0) * w.n;
    switch (w.form) {
        case Linear::Form::kFloat:
            return kernels.linear_f32(x.f32 + skipped, m, w.k, w.packed, w.bias, to, w.n, panel, panel + 1, add);
        case Linear::Form::kBfloat16:
            return kernels.linear_bf16(x.f32 + skipped, m, w.k, w.packed, w.bias, to, w.n, panel, panel + 1, add);
        case Linear::Form::kInt8:
            return kernels.linear_i8(x.u8 + skipped, x.scale + m0, m, w.k, w.packed, w.scale, w.sum, w.bias, to, w.n,
                                     panel, panel + 1, add);
    }
}

}  // namespace

OperandView Operand::view() const {
    return {width, quantized ? nullptr : values.as<float>(), quantized ? values.as<uint8_t>() : nullptr,
            quantized ? scales.as<float>() : nullptr};
}

Program::Program(Bounds bounds, int threads, const KernelTable* kernels)
    : bounds_(bounds), kernels_(kernels), pool_(threads), vocab_(INT_MAX), positions_(INT_MAX) {}

int Program::bound(Extent extent) const { return extent == Extent::kTokens ? bounds_.max_tokens : bounds_.max_seqs; }

// rows(begin, end) for pieces of at least `least` of `count` rows.
template <typename Rows>
void Program::for_rows(int count, int least, const Rows& rows) {
    const int grain = std::max(least, divide_up(count, 4 * pool_.size()));
    pool_.parallel_for(count, grain, [&](int, int begin, int end) { rows(begin, end); });
}

// Each thread gets at least so many bytes to work with.
void Program::need_scratch(size_t bytes) {
    if (!scratch_.empty() && scratch_.front().bytes() >= bytes) return;
    scratch_.clear();
    for (int i = 0; i < pool_.size(); ++i) scratch_.emplace_back(bytes);
}

// ---- storage --------------------------------------------------------------------------------------------------------

Buffer& Program::buffer(int width, Extent extent) {
    const size_t bytes = sizeof(float) * bound(extent) * static_cast<size_t>(width);
    return buffers_.emplace_back(Buffer{width, extent, Memory(bytes)});
}

Operand& Program::operand(int width, Extent extent, bool quantized) {
    const size_t rows = bound(extent), each = quantized ? sizeof(uint8_t) : sizeof(float);
    return operands_.emplace_back(Operand{width, extent, quantized, Memory(rows * width * each),
                                          Memory(quantized ? rows * sizeof(float) : 0)});
}

Linear& Program::add_linear(int n, int k, Linear::Form form, size_t bytes, const float* bias) {
    const bool scaled = form == Linear::Form::kInt8;
    return linears_.emplace_back(Linear{n, k, form, arena_.take<char>(bytes), arena_.copy(bias, n),
                                        scaled ? arena_.take<float>(n) : nullptr,
                                        scaled ? arena_.take<int32_t>(n) : nullptr});
}

Linear& Program::linear_f32(const float* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kFloat, kernels_->linear_bytes_f32(n, k), bias);
    pool_.parallel_for(n, kPanelColumns, [&](int, int begin, int end) {
        kernels_->pack_f32(weight + static_cast<size_t>(begin) * k, end - begin, k,
                           static_cast<char*>(linear.packed) + kernels_->linear_bytes_f32(begin, k));
    });
    return linear;
}

Linear& Program::linear_bf16(const uint16_t* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kBfloat16, kernels_->linear_bytes_bf16(n, k), bias);
    pool_.parallel_for(n, kPanelColumns, [&](int, int begin, int end) {
        kernels_->pack_bf16(weight + static_cast<size_t>(begin) * k, end - begin, k,
                            static_cast<char*>(linear.packed) + kernels_->linear_bytes_bf16(begin, k));
    });
    return linear;
}

Linear& Program::linear_i8(const float* weight, int n, int k, const float* bias) {
    Linear& linear = add_linear(n, k, Linear::Form::kInt8, kernels_->linear_bytes_i8(n, k), bias);
    pool_.parallel_for(n, kPanelColumns, [&](int, int begin, int end) {
        kernels_->pack_i8(weight + static_cast<size_t>(begin) * k, end - begin, k,
                          static_cast<char*>(linear.packed) + kernels_->linear_bytes_i8(begin, k),
                          linear.scale + begin, linear.sum + begin);
    });
    return linear;
}

Cache& Program::cache(int kv_heads, int head_dim, bool quantized) {
    const size_t heads = size_t(bounds_.num_blocks) * bounds_.block_size * kv_heads;
    const size_t bytes = heads * head_dim * (quantized ? sizeof(int8_t) : sizeof(float));
    const size_t scales = quantized ? heads * sizeof(float) : 0;
    Cache& cache = caches_.emplace_back(Cache{Memory(bytes), Memory(bytes), Memory(scales), Memory(scales), {}});
    cache.view = {bounds_.num_blocks,       bounds_.block_size,
                  kv_heads,                 head_dim,
                  cache.keys.as<void>(),    cache.values.as<void>(),
                  cache.key_scales.as<float>(), cache.value_scales.as<float>()};
    return cache;
}

Rotary& Program::rotary(const float* cos, const float* sin, int positions, int pairs) {
    const size_t count = static_cast<size_t>(positions) * pairs;
    return rotaries_.emplace_back(Rotary{positions, arena_.copy(cos, count), arena_.copy(sin, count)});
}

// ---- ops ------------------------------------------------------------------------------------------------------------

void Program::record(const char* kind, Op op) {
    size_t index = 0;
    while (index < times_.size() && times_[index].kind != kind) ++index;
    if (index == times_.size()) times_.push_back({kind, 0, 0});
    ops_.emplace_back(index, std::move(op));
}

void Program::embed_f32(const float* table, int vocab, float scale, Buffer& out) {
    vocab_ = std::min(vocab_, vocab);
    const float* kept = arena_.copy(table, static_cast<size_t>(vocab) * out.width);
    record("embed", [=, this, &out](const BatchView& batch) {
        for_rows(batch.tokens_count, 16, [&](int begin, int end) {
            kernels_->embed_f32(kept, batch.tokens, out.width, scale, out.values(), begin, end);
        });
    });
}

void Program::embed_bf16(const uint16_t* table, int vocab, float scale, Buffer& out) {
    vocab_ = std::min(vocab_, vocab);
    const uint16_t* kept = arena_.copy(table, static_cast<size_t>(vocab) * out.width);
    record("embed", [=, this, &out](const BatchView& batch) {
        for_rows(batch.tokens_count, 16, [&](int begin, int end) {
            kernels_->embed_bf16(kept, batch.tokens, out.width, scale, out.values(), begin, end);
        });
    });
}

void Program::norm(Buffer& x, const float* weight, float eps, Operand& out) {
    const float* kept = arena_.copy(weight, x.width);
    record("norm", [=, this, &x, &out](const BatchView& batch) {
        for_rows(count_of(x.extent, batch), 8, [&](int begin, int end) {
            kernels_->norm(x.values(), kept, x.width, eps, out.view(), begin, end);
        });
    });
}

void Program::norm_add(Buffer& x, const float* weight, float eps, Buffer& residual) {
    const float* kept = arena_.copy(weight, x.width);
    record("norm", [=, this, &x, &residual](const BatchView& batch) {
        for_rows(count_of(x.extent, batch), 8, [&](int begin, int end) {
            kernels_->norm_add(x.values(), kept, x.width, eps, residual.values(), begin, end);
        });
    });
}

void Program::linear(Operand& x, Linear& weight, Buffer& out, bool add) {
    const char* kind = x.extent == Extent::kRows ? "head" : "linear";
    const int panels = divide_up(weight.n, kPanelColumns);
    record(kind, [=, this, &x, &weight, &out](const BatchView& batch) {
        const int m = count_of(x.extent, batch);
        if (m == 0) return;
        const OperandView left = x.view();
        const Units units(m, panels, static_cast<size_t>(weight.k) * (left.f32 ? sizeof(float) : 1));
        const int each = std::clamp(units.count() / (kLeastUnitsOfPiece * pool_.size()), 1, kPiecesPerThread);
        pool_.parallel_for(units.count(), divide_up(units.count(), each * pool_.size()), [&](int, int begin, int end) {
            units.each(begin, end, [&](int m0, int rows, int panel) {
                run_linear(*kernels_, left, weight, out.values(), m0, rows, panel, add);
            });
        });
    });
}

void Program::rotate_store(Buffer& qkv, Cache& cache, Rotary& rotary, const float* q_norm, const float* k_norm,
                           float eps) {
    const CacheView view = cache.view;
    const float* q_weight = arena_.copy(q_norm, view.head_dim);
    const float* k_weight = arena_.copy(k_norm, view.head_dim);
    const int q_heads = qkv.width / view.head_dim - 2 * view.kv_heads;
    positions_ = std::min(positions_, rotary.positions);
    record("rotate_store", [=, this, &qkv, &rotary](const BatchView& batch) {
        for_rows(batch.tokens_count, 8, [&](int begin, int end) {
            kernels_->rotate_store(qkv.values(), q_heads, view, rotary.cos, rotary.sin, q_weight, k_weight, eps, batch,
                                   begin, end);
        });
    });
}

// Cuts the batch into tiles of up to `most` tokens, once a step: layers with the same heads share them.
int Program::cut_tiles(const BatchView& batch, int most) {
    if (most != tiles_most_) {
        tiles_.resize(batch.tokens_count + 1);
        tiles_count_ = kernels_->attention_tiles(batch, bounds_.block_size, most, tiles_.data());
        tiles_most_ = most;
    }
    return tiles_count_;
}

void Program::attention(Buffer& qkv, Cache& cache, float scale, int window, Operand& out) {
    const CacheView view = cache.view;
    const int q_heads = out.width / view.head_dim;
    need_scratch(kernels_->attention_scratch(q_heads, view));
    if (out.quantized && !out.unquantized) out.unquantized = &buffer(out.width, Extent::kTokens);
    float* rows = out.quantized ? out.unquantized->values() : out.values.as<float>();
    record("attention", [=, this, &qkv, &out](const BatchView& batch) {
        // As many rows to a tile as it takes, if that leaves items enough for all threads.
        const int most = std::clamp(batch.tokens_count * view.kv_heads / (kTilesPerThread * pool_.size()), 1,
                                    std::max(1, kRowsOfTile * view.kv_heads / q_heads));
        const int items = cut_tiles(batch, most) * view.kv_heads;
        pool_.parallel_for(items, std::max(1, items / (16 * pool_.size())), [&](int worker, int begin, int end) {
            kernels_->attention(qkv.values(), q_heads, view, scale, window, batch, tiles_.data(), rows,
                                scratch_[worker].as<void>(), begin, end);
        });
        if (!out.quantized) return;
        const OperandView to = out.view();
        for_rows(batch.tokens_count, 8, [&](int begin, int end) {
            for (size_t t = begin; t < static_cast<size_t>(end); ++t)
                kernels_->quantize_row(rows + t * to.width, to.width, to.u8 + t * to.width, to.scale + t);
        });
    });
}

void Program::gated(Buffer& gate_up, bool gelu, Operand& out) {
    const auto kernel = gelu ? kernels_->gated_gelu_tanh : kernels_->gated_silu;
    record("gated", [=, this, &gate_up, &out](const BatchView& batch) {
        for_rows(count_of(gate_up.extent, batch), 4,
                 [&](int begin, int end) { kernel(gate_up.values(), out.view(), begin, end); });
    });
}

void Program::gather(Buffer& x, Buffer& out) {
    record("gather", [&x, &out](const BatchView& batch) {
        const size_t width = x.width;
        for (int r = 0; r < batch.rows_count; ++r)
            std::memcpy(out.values() + r * width, x.values() + batch.rows[r] * width, width * sizeof(float));
    });
}

// ---- replay ---------------------------------------------------------------------------------------------------------

void Program::check(const BatchView& batch) const {
    const auto& [max_tokens, max_seqs, num_blocks, block_size] = bounds_;
    demand(batch.tokens_count <= max_tokens, "more tokens than the shape allows");
    demand(batch.sequences <= max_seqs, "more sequences than the shape allows");
    demand(batch.rows_count <= max_seqs, "more rows than the shape allows");
    demand(all_below(batch.tokens, batch.tokens_count, vocab_), "a token id outside of the vocabulary");
    demand(all_below(batch.positions, batch.tokens_count, positions_), "a position outside of the rotary table");
    const int64_t slots = std::min<int64_t>(static_cast<int64_t>(num_blocks) * block_size, INT_MAX);
    demand(all_below(batch.slots, batch.tokens_count, static_cast<int>(slots)), "a slot outside of the cache");
    demand(all_below(batch.rows, batch.rows_count, batch.tokens_count), "a row that is no token");
    demand(batch.query_start[0] == 0 && batch.query_start[batch.sequences] <= batch.tokens_count,
           "query_start does not fit the tokens");
    for (int s = 0; s < batch.sequences; ++s) {
        const int queries = batch.query_start[s + 1] - batch.query_start[s], context = batch.context_lens[s];
        demand(queries >= 0 && queries <= context, "a sequence with more queries than context");
        const int blocks = divide_up(context, block_size);
        demand(blocks <= batch.table_width, "a block table shorter than its context");
        demand(all_below(batch.block_tables + static_cast<size_t>(s) * batch.table_width, blocks, num_blocks),
               "a block outside of the cache");
    }
}

void Program::run(const BatchView& batch) {
    check(batch);
    tiles_most_ = 0;
    auto last = std::chrono::steady_clock::now();
    for (auto& [index, op] : ops_) {
        op(batch);
        const auto now = std::chrono::steady_clock::now();
        times_[index].calls += 1;
        times_[index].nanoseconds += std::chrono::nanoseconds(now - last).count();
        last = now;
    }
}

int32_t Program::sample_row(const float* logits, int vocab, const SamplingView& rows, int r, char* scratch) const {
    const RowChanges changes = rows.changes ? rows.changes->row(r) : RowChanges{};
    if (changes.any()) {
        float* changed = reinterpret_cast<float*>(scratch + vocab * kSampleScratch);
        const bool possible = kernels_->change_logits(logits, vocab, changes, changed);
        logits = changed;
        if (!possible) return lowest_allowed(changes.mask, vocab);
    }
    return kernels_->sample(logits, vocab, rows.temperature[r], rows.top_k[r], rows.top_p[r], rows.min_p[r],
                            rows.seed[r], rows.position[r], scratch);
}

void Program::sample(Buffer& logits, const SamplingView& rows, int32_t* chosen) {
    const int vocab = logits.width;
    need_scratch(vocab * (kSampleScratch + (rows.changes ? sizeof(float) : 0)));
    pool_.parallel_for(rows.rows, 1, [&](int worker, int begin, int end) {
        for (int r = begin; r < end; ++r)
            chosen[r] = sample_row(logits.values() + static_cast<size_t>(r) * vocab, vocab, rows, r,
                                   scratch_[worker].as<char>());
    });
}

void Program::logprobs(Buffer& logits, const LogprobView& rows) {
    const int vocab = logits.width;
    need_scratch(vocab * kSampleScratch);
    pool_.parallel_for(rows.count, 1, [&](int worker, int begin, int end) {
        for (int q = begin; q < end; ++q)
            kernels_->read_logprobs(logits.values(), vocab, rows, q, scratch_[worker].as<void>());
    });
}

}  // namespace batchgen
