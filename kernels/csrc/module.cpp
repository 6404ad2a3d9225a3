// The Python face of the native program: see batchgen_kernels/cpu.py, which adds types and checks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
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

const KernelTable* table_of(const std::string& name) {
    for (const KernelTable* table : {kernels_avx512vnni(), kernels_avx2(), kernels_portable()})
        if (table && (name.empty() || name == table->name)) return table;
    return nullptr;
}

nb::list instruction_sets() {
    nb::list names;
    for (const KernelTable* table : {kernels_avx512vnni(), kernels_avx2(), kernels_portable()})
        if (table) names.append(table->name);
    return names;
}

const float* data_or_null(const std::optional<Floats>& array) { return array ? array->data() : nullptr; }

Extent extent_of(bool rows) { return rows ? Extent::kRows : Extent::kTokens; }

void run(Program& program, const Ints& tokens, const Ints& positions, const Ints& slots, const Ints& query_start,
         const Ints& context_lens, const Array<int32_t, 2>& block_tables, const Ints& rows) {
    const BatchView batch = {static_cast<int>(tokens.size()),
                             static_cast<int>(context_lens.size()),
                             static_cast<int>(rows.size()),
                             static_cast<int>(block_tables.shape(1)),
                             tokens.data(),
                             positions.data(),
                             slots.data(),
                             query_start.data(),
                             context_lens.data(),
                             block_tables.data(),
                             rows.data()};
    nb::gil_scoped_release release;
    program.run(batch);
}

void argmax(Program& program, Buffer& logits, nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig> chosen) {
    int32_t* to = chosen.data();
    const int rows = static_cast<int>(chosen.size());
    nb::gil_scoped_release release;
    program.argmax(logits, rows, to);
}

nb::list times(const Program& program) {
    nb::list list;
    for (const Program::Time& time : program.times())
        list.append(nb::make_tuple(time.kind, time.calls, time.nanoseconds));
    return list;
}

}  // namespace
}  // namespace batchgen

NB_MODULE(_native, m) {
    using namespace batchgen;
    const auto inside = nb::rv_policy::reference_internal;

    m.def("instruction_sets", &instruction_sets);
    nb::class_<Buffer>(m, "Buffer")
        .def_ro("width", &Buffer::width)
        .def("numpy", [](nb::handle self, size_t count) {
            Buffer& buffer = nb::cast<Buffer&>(self);
            return nb::ndarray<nb::numpy, float>(buffer.data.as<float>(), {count, size_t(buffer.width)}, self);
        });
    nb::class_<Operand>(m, "Operand")
        .def_ro("width", &Operand::width)
        .def("numpy", [](nb::handle self, size_t count) {
            Operand& operand = nb::cast<Operand&>(self);
            return nb::ndarray<nb::numpy, float>(operand.values.as<float>(), {count, size_t(operand.width)}, self);
        })
        .def("quantized", [](nb::handle self, size_t count) {
            Operand& operand = nb::cast<Operand&>(self);
            return nb::make_tuple(
                nb::ndarray<nb::numpy, uint8_t>(operand.values.as<uint8_t>(), {count, size_t(operand.width)}, self),
                nb::ndarray<nb::numpy, float>(operand.scales.as<float>(), {count}, self));
        });
    nb::class_<Linear>(m, "Linear").def_ro("out_features", &Linear::n).def_ro("in_features", &Linear::k);
    nb::class_<Rotary>(m, "Rotary");
    nb::class_<Cache>(m, "Cache").def("numpy", [](nb::handle self) {
        const CacheView view = nb::cast<Cache&>(self).view;
        const size_t blocks = view.num_blocks, heads = view.kv_heads, dim = view.head_dim, size = view.block_size;
        return nb::make_tuple(nb::ndarray<nb::numpy, float>(view.keys, {blocks, heads, dim, size}, self),
                              nb::ndarray<nb::numpy, float>(view.values, {blocks, heads, size, dim}, self));
    });
    nb::class_<Program>(m, "Program")
        .def("__init__",
             [](Program* self, int max_tokens, int max_seqs, int num_blocks, int block_size, int threads,
                const std::string& instruction_set) {
                 const KernelTable* table = table_of(instruction_set);
                 if (!table) throw std::invalid_argument("this machine has no instruction set " + instruction_set);
                 new (self) Program({max_tokens, max_seqs, num_blocks, block_size}, threads, table);
             })
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
                 return p.rotary(cos.data(), sin.data(), cos.size());
             },
             inside)
        .def("embed_f32", [](Program& p, const Matrix& table, float scale,
                             Buffer& out) { p.embed_f32(table.data(), table.shape(0), scale, out); })
        .def("embed_bf16", [](Program& p, const Bits& table, float scale,
                              Buffer& out) { p.embed_bf16(table.data(), table.shape(0), scale, out); })
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
        .def("run", &run)
        .def("argmax", &argmax)
        .def("times", &times);
}
