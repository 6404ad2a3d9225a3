// The Python face of the native program: see batchgen_kernels/cpu.py, which adds types and checks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace batchgen {
namespace {

template <typename T, int Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Floats = Array<float, 1>;
using Matrix = Array<float, 2>;
using Bits = Array<uint16_t, 2>;  // bfloat16
using Ints = Array<int32_t, 1>;
template <typename T, int Dims>
using Writable = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

nb::list instruction_sets() {
    nb::list names;
    for (const KernelTable* table : {kernels_avx512vnni(), kernels_avx2(), kernels_portable()})
        if (table) names.append(table->name);
    return names;
}

// The best table, or the named one.
const KernelTable* table_of(const std::optional<std::string>& name) {
    for (const KernelTable* table : {kernels_avx512vnni(), kernels_avx2(), kernels_portable()})
        if (table && name.value_or(table->name) == table->name) return table;
    throw std::invalid_argument("this machine cannot run instruction set " + *name);
}

const float* data_or_null(const std::optional<Floats>& array) { return array ? array->data() : nullptr; }

Extent extent_of(bool rows) { return rows ? Extent::kRows : Extent::kTokens; }

template <typename T, typename Owner>
nb::ndarray<nb::numpy, T> view_of(T* data, std::initializer_list<size_t> shape, const Owner& owner) {
    return {data, shape, owner};
}

// Operations a second that all threads reach on registers, in one run of `steps` loops each; 0 where there are none.
double peak(const std::string& instruction_set, bool int8, int threads, int64_t steps) {
    const KernelTable* table = table_of(instruction_set);
    ThreadPool pool(threads);
    std::atomic<int64_t> operations{0};
    nb::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(threads, 1, [&](int, int, int) {
        alignas(64) float sink[16] = {0.5f, 0.5f};
        operations += (int8 ? table->peak_i8 : table->peak_f32)(steps, sink);
    });
    return operations / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(Program& program, const Ints& tokens, const Ints& positions, const Ints& slots, const Ints& query_start,
         const Ints& context_lens, const Array<int32_t, 2>& block_tables, const Ints& rows) {
    const auto size = [](const Ints& array) { return static_cast<int>(array.size()); };
    if (positions.size() != tokens.size() || slots.size() != tokens.size() ||
        query_start.size() != context_lens.size() + 1 || block_tables.shape(0) != context_lens.size())
        throw std::invalid_argument("batch: the lengths of its arrays do not fit together");
    const BatchView batch = {size(tokens),     size(context_lens), size(rows),         int(block_tables.shape(1)),
                             tokens.data(),    positions.data(),   slots.data(),       query_start.data(),
                             context_lens.data(), block_tables.data(), rows.data()};
    nb::gil_scoped_release release;
    program.run(batch);
}

void demand(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

bool all_in(const Ints& values, int64_t begin, int64_t end) {
    return std::all_of(values.data(), values.data() + values.size(), [=](int32_t v) { return v >= begin && v < end; });
}

// Whether `start` [rows + 1] splits a list of `count` entries into one piece a row.
bool splits(const Ints& start, size_t rows, size_t count) {
    const int32_t *first = start.data(), *last = first + start.size();
    return start.size() == rows + 1 && *first == 0 && std::is_sorted(first, last) && last[-1] == int64_t(count);
}

// ops.LogitChanges, its arrays held.
struct Changes {
    Ints mask_of;
    Array<uint32_t, 2> masks;
    Ints bias_start, bias_ids;
    Floats bias;
    Ints context_start, context_ids, context_counts;
    Floats repetition, frequency, presence;

    ChangesView view(size_t rows, int vocab) const {
        const int words = (vocab + 31) / 32;
        demand(mask_of.size() == rows && repetition.size() == rows && frequency.size() == rows &&
                   presence.size() == rows && bias.size() == bias_ids.size() &&
                   context_counts.size() == context_ids.size() && splits(bias_start, rows, bias.size()) &&
                   splits(context_start, rows, context_ids.size()),
               "sample: the lengths of the changes do not fit together");
        demand(all_in(mask_of, -1, masks.shape(0)) && (masks.shape(0) == 0 || int64_t(masks.shape(1)) == words),
               "sample: masks that do not fit");
        demand(all_in(bias_ids, 0, vocab) && all_in(context_ids, 0, vocab),
               "sample: a token id outside of the vocabulary");
        return {words,
                mask_of.data(),
                masks.data(),
                bias_start.data(),
                bias_ids.data(),
                bias.data(),
                context_start.data(),
                context_ids.data(),
                context_counts.data(),
                repetition.data(),
                frequency.data(),
                presence.data()};
    }
};

nb::ndarray<nb::numpy, int32_t> sample(Program& program, Buffer& logits, const Floats& temperature, const Ints& top_k,
                                       const Floats& top_p, const Floats& min_p, const Array<uint64_t, 1>& seed,
                                       const Array<int64_t, 1>& position, const Changes* changes) {
    const size_t count = temperature.size();
    demand(top_k.size() == count && top_p.size() == count && min_p.size() == count && seed.size() == count &&
               position.size() == count && count <= logits.rows(),
           "sample: the lengths of its arrays do not fit together or exceed the logits");
    const ChangesView view = changes ? changes->view(count, logits.width) : ChangesView{};
    const SamplingView rows = {int(count),   temperature.data(), top_k.data(),    top_p.data(),
                               min_p.data(), seed.data(),        position.data(), changes ? &view : nullptr};
    auto chosen = std::make_unique<int32_t[]>(count);
    {
        nb::gil_scoped_release release;
        program.sample(logits, rows, chosen.get());
    }
    int32_t* data = chosen.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
    return {data, {count}, owner};
}

void logprobs(Program& program, Buffer& logits, const Ints& row, const Ints& token, const Writable<float, 1>& logprob,
              const Writable<int32_t, 1>& rank, const Writable<int32_t, 2>& top_ids,
              const Writable<float, 2>& top_logprobs) {
    const size_t count = row.size(), top = top_ids.shape(1);
    demand(token.size() == count && logprob.size() == count && rank.size() == count && top_ids.shape(0) == count &&
               top_logprobs.shape(0) == count && top_logprobs.shape(1) == top && top <= size_t(logits.width),
           "logprobs: the lengths of its arrays do not fit together");
    demand(all_in(row, 0, logits.rows()) && all_in(token, 0, logits.width), "logprobs: a row or token outside");
    const LogprobView rows = {int(count),     int(top),    row.data(),     token.data(),
                              logprob.data(), rank.data(), top_ids.data(), top_logprobs.data()};
    nb::gil_scoped_release release;
    program.logprobs(logits, rows);
}

nb::list times(const Program& program) {
    nb::list list;
    for (const Program::Time& time : program.times())
        list.append(nb::make_tuple(time.kind, time.calls, time.nanoseconds));
    return list;
}

void bind_storage(nb::module_& m) {
    nb::class_<Buffer>(m, "Buffer")
        .def_ro("width", &Buffer::width)
        .def("numpy", [](nb::handle self, size_t count) {
            const Buffer& buffer = nb::cast<Buffer&>(self);
            return view_of(buffer.values(), {count, size_t(buffer.width)}, self);
        });
    nb::class_<Operand>(m, "Operand")
        .def_ro("width", &Operand::width)
        .def("numpy", [](nb::handle self, size_t count) {
            const OperandView view = nb::cast<Operand&>(self).view();
            return view_of(view.f32, {count, size_t(view.width)}, self);
        })
        .def("quantized", [](nb::handle self, size_t count) {
            const OperandView view = nb::cast<Operand&>(self).view();
            return nb::make_tuple(view_of(view.u8, {count, size_t(view.width)}, self),
                                  view_of(view.scale, {count}, self));
        });
    nb::class_<Linear>(m, "Linear").def_ro("out_features", &Linear::n).def_ro("in_features", &Linear::k);
    nb::class_<Rotary>(m, "Rotary");
    nb::class_<Changes>(m, "Changes")
        .def("__init__",
             [](Changes* self, Ints mask_of, Array<uint32_t, 2> masks, Ints bias_start, Ints bias_ids, Floats bias,
                Ints context_start, Ints context_ids, Ints context_counts, Floats repetition, Floats frequency,
                Floats presence) {
                 new (self) Changes{mask_of, masks, bias_start, bias_ids, bias, context_start, context_ids,
                                    context_counts, repetition, frequency, presence};
             });
    nb::class_<Cache>(m, "Cache").def("numpy", [](nb::handle self) {
        const CacheView view = nb::cast<Cache&>(self).view;
        const size_t blocks = view.num_blocks, heads = view.kv_heads, dim = view.head_dim, size = view.block_size;
        if (!view.key_scales)
            return nb::tuple(nb::make_tuple(view_of((float*)view.keys, {blocks, heads, dim, size}, self),
                                            view_of((float*)view.values, {blocks, heads, size, dim}, self)));
        return nb::tuple(nb::make_tuple(view_of((uint8_t*)view.keys, {blocks, heads, dim / 4, size, 4}, self),
                                        view_of((int8_t*)view.values, {blocks, heads, size / 4, dim, 4}, self),
                                        view_of(view.key_scales, {blocks, heads, size}, self),
                                        view_of(view.value_scales, {blocks, heads, size}, self)));
    });
}

void bind_program(nb::module_& m) {
    const auto inside = nb::rv_policy::reference_internal;
    nb::class_<Program>(m, "Program")
        .def("__init__",
             [](Program* self, int max_tokens, int max_seqs, int num_blocks, int block_size, int threads,
                const std::optional<std::string>& instruction_set) {
                 new (self) Program({max_tokens, max_seqs, num_blocks, block_size}, threads, table_of(instruction_set));
             },
             "max_tokens"_a, "max_seqs"_a, "num_blocks"_a, "block_size"_a, "threads"_a, "instruction_set"_a.none())
        .def_prop_ro("instruction_set", [](const Program& p) { return std::string(p.kernels().name); })
        .def("buffer", [](Program& p, int width, bool rows) -> Buffer& { return p.buffer(width, extent_of(rows)); },
             inside)
        .def("operand",
             [](Program& p, int width, bool rows, bool quantized) -> Operand& {
                 return p.operand(width, extent_of(rows), quantized);
             },
             inside)
        .def("linear_f32",
             [](Program& p, const Matrix& w, const std::optional<Floats>& bias) -> Linear& {
                 return p.linear_f32(w.data(), int(w.shape(0)), int(w.shape(1)), data_or_null(bias));
             },
             "weight"_a, "bias"_a.none(), inside)
        .def("linear_bf16",
             [](Program& p, const Bits& w, const std::optional<Floats>& bias) -> Linear& {
                 return p.linear_bf16(w.data(), int(w.shape(0)), int(w.shape(1)), data_or_null(bias));
             },
             "weight"_a, "bias"_a.none(), inside)
        .def("linear_i8",
             [](Program& p, const Matrix& w, const std::optional<Floats>& bias) -> Linear& {
                 return p.linear_i8(w.data(), int(w.shape(0)), int(w.shape(1)), data_or_null(bias));
             },
             "weight"_a, "bias"_a.none(), inside)
        .def("cache", &Program::cache, inside)
        .def("rotary",
             [](Program& p, const Matrix& cos, const Matrix& sin) -> Rotary& {
                 return p.rotary(cos.data(), sin.data(), int(cos.shape(0)), int(cos.shape(1)));
             },
             inside)
        .def("embed_f32", [](Program& p, const Matrix& table, float scale,
                             Buffer& out) { p.embed_f32(table.data(), int(table.shape(0)), scale, out); })
        .def("embed_bf16", [](Program& p, const Bits& table, float scale,
                              Buffer& out) { p.embed_bf16(table.data(), int(table.shape(0)), scale, out); })
        .def("norm", [](Program& p, Buffer& x, const Floats& weight, float eps,
                        Operand& out) { p.norm(x, weight.data(), eps, out); })
        .def("norm_add", [](Program& p, Buffer& x, const Floats& weight, float eps,
                            Buffer& residual) { p.norm_add(x, weight.data(), eps, residual); })
        .def("linear", &Program::linear)
        .def("rotate_store",
             [](Program& p, Buffer& qkv, Cache& cache, Rotary& rotary, const std::optional<Floats>& q_norm,
                const std::optional<Floats>& k_norm, float eps) {
                 p.rotate_store(qkv, cache, rotary, data_or_null(q_norm), data_or_null(k_norm), eps);
             },
             "qkv"_a, "cache"_a, "rotary"_a, "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
        .def("attention", &Program::attention)
        .def("gated", &Program::gated)
        .def("gather", &Program::gather)
        .def("run", &run, "tokens"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
             "query_start"_a.noconvert(), "context_lens"_a.noconvert(), "block_tables"_a.noconvert(),
             "rows"_a.noconvert())
        .def("sample", &sample, "logits"_a, "temperature"_a.noconvert(), "top_k"_a.noconvert(), "top_p"_a.noconvert(),
             "min_p"_a.noconvert(), "seed"_a.noconvert(), "position"_a.noconvert(), "changes"_a.none())
        .def("logprobs", &logprobs, "logits"_a, "row"_a.noconvert(), "token"_a.noconvert(), "logprob"_a.noconvert(),
             "rank"_a.noconvert(), "top_ids"_a.noconvert(), "top_logprobs"_a.noconvert())
        .def("times", &times);
}

}  // namespace
}  // namespace batchgen

NB_MODULE(_native, m) {
    m.def("instruction_sets", &batchgen::instruction_sets);
    m.def("peak", &batchgen::peak);
    batchgen::bind_storage(m);
    batchgen::bind_program(m);
}
