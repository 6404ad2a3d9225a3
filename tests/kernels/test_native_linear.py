"""Native linears against exact arithmetic, and their bits against the batch, the threads and the tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchgen_kernels import cpu
from batchgen_kernels.ops import Batch, Extent, Operand, Precision, Shape
from batchgen_kernels.reference import quantize

if TYPE_CHECKING:
    from batchgen_kernels import _native

Form = Literal["float32", "bfloat16", "int8"]
Floats = npt.NDArray[np.float32]

SETS = cpu.instruction_sets()
FORMS: list[Form] = ["float32", "bfloat16", "int8"]
each_set = pytest.mark.parametrize("instruction_set", SETS)
each_form = pytest.mark.parametrize("form", FORMS)


def test_this_machine_builds_and_runs_native_code() -> None:
    assert cpu.available()
    assert cpu.unavailable_reason() is None
    assert SETS[-1] == "portable"


@dataclass(frozen=True)
class Case:
    """One linear: x [M, K], weight [N, K]."""

    m: int
    n: int
    k: int
    biased: bool
    add: bool
    seed: int

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Floats]:
        """x, weight, bias, and what is in the output before."""
        generator = torch.Generator().manual_seed(self.seed)
        x, weight, bias, before = (
            torch.randn(size, generator=generator)
            for size in ((self.m, self.k), (self.n, self.k), (self.n,), (self.m, self.n))
        )
        return x, weight, bias if self.biased else None, before.numpy()


@st.composite
def cases(draw: st.DrawFn, k_multiple: int = 1) -> Case:
    return Case(
        m=draw(st.integers(0, 70)),
        n=draw(st.integers(1, 200)),
        k=k_multiple * draw(st.integers(1, 300 if k_multiple == 1 else 12)),
        biased=draw(st.booleans()),
        add=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def cases_of(form: Form) -> st.SearchStrategy[Case]:
    return cases(k_multiple=64 if form == "int8" else 1)


def tokens_only(count: int) -> Batch:
    """A batch of which linears see nothing but its number of tokens."""
    zeros = np.zeros(count, dtype=np.int32)
    none = np.zeros(0, dtype=np.int32)
    return Batch(
        tokens=zeros,
        positions=zeros,
        slots=zeros,
        query_start=np.zeros(1, dtype=np.int32),
        context_lens=none,
        block_tables=np.zeros((0, 1), dtype=np.int32),
        rows=none,
    )


def inside(operand: Operand) -> _native.Operand:
    """The operand as native code has it: its arrays can be read and written."""
    return cast("_native.Operand", operand)


def native(case: Case, form: Form, instruction_set: str, threads: int = 2, rows: slice = slice(None)) -> Floats:
    """What the native code makes of rows of the case, [rows, N]; the row after them is not touched."""
    x, weight, bias, before = case.draw()
    x, before = x[rows], before[rows]
    program = cpu.NativeProgram(Shape(len(x) + 1, 1, 1, 16, 1), threads, instruction_set)
    precision: Precision = "int8" if form == "int8" else "float32"
    left, out = program.operand(case.k, Extent.TOKENS, precision), program.buffer(case.n, Extent.TOKENS)
    packed = program.linear_weight(weight.bfloat16() if form == "bfloat16" else weight, bias, precision)
    (program.linear_add if case.add else program.linear)(left, packed, out)
    if form == "int8":
        values, scales = quantize(x)
        shifted, row_scales = inside(left).quantized(len(x))
        shifted[:] = (values.numpy().astype(np.int32) + 128).astype(np.uint8)
        row_scales[:] = scales.numpy()
    else:
        inside(left).numpy(len(x))[:] = x.numpy()
    out.numpy(len(x) + 1)[:] = np.nan
    if case.add:
        out.numpy(len(x))[:] = before
    program.run(tokens_only(len(x)))
    assert np.isnan(out.numpy(len(x) + 1)[-1]).all()
    return out.numpy(len(x)).copy()


def exact_int8(case: Case) -> Floats:
    """The int8 scheme: whole sums, then float32 products in its order."""
    x, weight, bias, before = case.draw()
    (values, row_scales), (weights, column_scales) = quantize(x), quantize(weight)
    sums = values.double() @ weights.double().T  # whole numbers below 2^53
    out = sums.float() * row_scales[:, None] * column_scales
    if bias is not None:
        out = out + bias
    return (torch.from_numpy(before) + out if case.add else out).numpy()


def same_bits(a: Floats, b: Floats) -> bool:
    return a.tobytes() == b.tobytes()


def check_float(case: Case, form: Form, instruction_set: str) -> None:
    """Against the product in float64, within what K + 2 roundings in any order can do."""
    x, weight, bias, before = case.draw()
    weight = (weight.bfloat16() if form == "bfloat16" else weight).double()
    exact = x.double() @ weight.T
    size = x.double().abs() @ weight.abs().T
    for addend in ([] if bias is None else [bias.double()]) + ([torch.from_numpy(before).double()] if case.add else []):
        exact, size = exact + addend, size + addend.abs()
    error = (torch.from_numpy(native(case, form, instruction_set)).double() - exact).abs()
    # Higham, Accuracy and Stability of Numerical Algorithms, 3.1; the portable code rounds products too.
    assert (error <= (2 * case.k + 2) * 2.0**-24 * size).all()


@each_set
@pytest.mark.parametrize("form", ["float32", "bfloat16"])
@given(data=st.data())
def test_float_linears_are_near_the_exact_product(instruction_set: str, form: Form, data: st.DataObject) -> None:
    check_float(data.draw(cases_of(form)), form, instruction_set)


@each_set
@given(case=cases_of("int8"))
def test_int8_linears_have_the_bits_of_the_scheme(instruction_set: str, case: Case) -> None:
    assert same_bits(native(case, "int8", instruction_set), exact_int8(case))


@each_set
@each_form
@given(data=st.data())
def test_a_row_has_the_same_bits_alone_and_in_any_batch(instruction_set: str, form: Form, data: st.DataObject) -> None:
    case = data.draw(cases_of(form).filter(lambda case: case.m > 0))
    first = data.draw(st.integers(0, case.m - 1))
    rows = slice(first, data.draw(st.integers(first + 1, case.m)))
    whole = native(case, form, instruction_set)
    assert same_bits(whole[rows], native(case, form, instruction_set, rows=rows))
    assert same_bits(whole[first : first + 1], native(case, form, instruction_set, rows=slice(first, first + 1)))


@each_set
@each_form
@given(data=st.data())
def test_the_bits_do_not_depend_on_threads(instruction_set: str, form: Form, data: st.DataObject) -> None:
    case = data.draw(cases_of(form))
    one, *others = (native(case, form, instruction_set, threads) for threads in (1, 2, 3))
    assert all(same_bits(one, other) for other in others)


@each_set
@pytest.mark.parametrize(("m", "n", "k"), [(49, 65, 1536), (150, 64, 1088), (12, 128, 4160), (96, 576, 576)])
def test_shapes_beyond_one_block_and_one_slice(instruction_set: str, m: int, n: int, k: int) -> None:
    case = Case(m, n, k, biased=True, add=True, seed=7)
    assert same_bits(native(case, "int8", instruction_set), exact_int8(case))
    check_float(case, "float32", instruction_set)
    check_float(case, "bfloat16", instruction_set)
    for form in FORMS:
        whole = native(case, form, instruction_set)
        for row in (0, m // 2, m - 1):
            alone = native(case, form, instruction_set, rows=slice(row, row + 1))
            assert same_bits(whole[row : row + 1], alone)


@each_set
@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(1, 10),
    magnitude=st.sampled_from([0.0, 1e-38, 1e-20, 1.0, 1e20]),
)
def test_quantised_rows_have_the_bits_of_the_scheme(
    instruction_set: str, seed: int, blocks: int, magnitude: float
) -> None:
    """Rows reach an int8 operand through a norm with weights of one, done here by the float32 program."""
    x = torch.randn(3, 64 * blocks, generator=torch.Generator().manual_seed(seed)) * magnitude
    program = cpu.NativeProgram(Shape(3, 1, 1, 16, 1), 1, instruction_set)
    source = program.buffer(64 * blocks, Extent.TOKENS)
    normed, rounded = (program.operand(64 * blocks, Extent.TOKENS, p) for p in ("float32", "int8"))
    for operand in (normed, rounded):
        program.norm(source, torch.ones(64 * blocks), 1e-30, operand)
    source.numpy(3)[:] = x.numpy()
    program.run(tokens_only(3))
    values, scales = quantize(torch.from_numpy(inside(normed).numpy(3)))
    actual, actual_scales = inside(rounded).quantized(3)
    assert np.array_equal(actual.astype(np.int32) - 128, values.numpy())
    assert same_bits(actual_scales, scales.numpy())
