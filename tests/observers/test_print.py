"""Print and parse_print: what is written is read back, by protobuf too; files are never overwritten, records never torn."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
from msctx.errors import FileError, MsctxWarning
from msctx.observers.printing import NAMES, encode

PRINT = msctx.Print()


def written(path: Path, *values: Any) -> list[Any]:
    with msctx.context(print_file_path=path):
        assert PRINT(*values) is None
    return msctx.parse_print(path)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return type(left) is type(right) and left == right
    is_same: bool = left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    return is_same


def tensors() -> list[torch.Tensor]:
    some = torch.tensor([[0.0, 1.0, -2.5], [3.0, 100.0, 7.0]])
    of_dtypes = [some.to(dtype) if dtype.is_signed or dtype == torch.bool else some.abs().to(dtype) for dtype in NAMES]
    complex_one = torch.complex(some, some + 1)
    odd = [
        some.t(),
        some[:, ::2],
        some[0, 1],
        torch.empty(0),
        torch.empty(3, 0, 2),
        complex_one.conj(),
        complex_one.conj().imag,
    ]
    return [*of_dtypes, *odd, some.expand(4, 2, 3), torch.nn.Parameter(some), some.requires_grad_() * 2]


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    given = [x for tensor in tensors() for x in ("", tensor, "naïve 文\n")]
    found = written(tmp_path / "p", *given)
    assert len(found) == len(given)
    for left, right in zip(found, given, strict=True):
        assert same(left, right if isinstance(right, str) else right.detach())


def test_the_bytes_are_those_of_the_format_and_what_other_writers_do_is_read(tmp_path: Path) -> None:
    """Older names of dtypes, a number with the dims [0]."""
    record = encode(["ab", torch.tensor([[1, -1]], dtype=torch.int16)])
    tensor = b"\x08\x01\x08\x02\x12\x05Int16\x1a\x04\x01\x00\xff\xff"
    assert record == b"\x0a\x04\x0a\x02ab" + b"\x0a\x13\x12\x11" + tensor
    (tmp_path / "p").write_bytes(
        b"\x0a\x0f\x12\x0d\x08\x02\x12\x05Uint8\x1a\x02\x07\x08\x0a\x0d\x12\x0b\x08\x00\x12\x04Int8\x1a\x01\x05"
    )
    pair, number = msctx.parse_print(tmp_path / "p")
    assert same(pair, torch.tensor([7, 8], dtype=torch.uint8))
    assert same(number, torch.tensor(5, dtype=torch.int8))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"plain text\n", "no printed value"),
        (b"\x0a\x08\x12\x06\x12\x04Quux", "unknown type 'Quux'"),
        (encode([torch.ones(2)]).replace(b"\x08\x02", b"\x08\x03"), r"shape \[3\] and type Float32 has 8 bytes"),
        (b"\xff" * 30, "cut off, or no printed values"),
    ],
)
def test_foreign_files_are_reported(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(FileError, match=text):
        msctx.parse_print(tmp_path / "p")


def test_without_the_option_it_prints_as_mindspore_does(capsys: pytest.CaptureFixture[str]) -> None:
    PRINT("x:", torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([1.5], dtype=torch.bfloat16), 3)
    PRINT()
    assert capsys.readouterr().out == (
        "x:\nTensor(shape=[2, 2], dtype=Int32, value=\n[[1, 2],\n [3, 4]])\n"
        "Tensor(shape=[1], dtype=BFloat16, value= [ 1.50000000e+00])\nTensor(shape=[], dtype=Int64, value= 3)\n"
    )
    assert PRINT.file is None


def test_nothing_that_exists_is_overwritten_and_a_scope_inside_with_the_same_file_goes_on_in_it(tmp_path: Path) -> None:
    path = tmp_path / "p"
    for text in ("one", "two", "three"):
        with msctx.context(print_file_path=path):
            file = PRINT.file
            PRINT(text)
            with msctx.context(print_file_path=path, deterministic="ON"):
                PRINT("b")
            with msctx.context(print_file_path=tmp_path / text):
                PRINT("c")
            PRINT("d")
        assert msctx.parse_print(file) == [text, "b", "d"]
        assert msctx.parse_print(tmp_path / text) == ["c"]
    first, *others = sorted(tmp_path.glob("p*"))
    assert (first, len(others)) == (path, 2)
    assert all(re.fullmatch(r"p\.\d{10}", other.name) for other in others)


@pytest.mark.parametrize("value", [None, object(), {}, torch.eye(2).to_sparse(), torch.ones(2).to(torch.float8_e5m2)])
def test_what_cannot_be_printed_raises_and_writes_nothing(tmp_path: Path, value: Any) -> None:
    with msctx.context(print_file_path=tmp_path / "p"), pytest.raises(TypeError, match=r"Print: .* cannot be printed; allowed"):
        PRINT("x", value)
    assert not (tmp_path / "p").exists()


def step(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).sin()
    PRINT("first", y, y.shape[0])
    z = y * 3
    PRINT("second", z.sum())
    PRINT("third", y)
    return z


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
@pytest.mark.parametrize("trains", [True, False])
def test_compiled_code_prints_in_order_without_a_break(tmp_path: Path, backend: str, trains: bool) -> None:
    torch._dynamo.reset()
    x = torch.linspace(0, 1, 5, requires_grad=trains)
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    with msctx.context(print_file_path=tmp_path / "eager"):
        step(x)
    expected = msctx.parse_print(tmp_path / "eager")
    for name in ("one", "two"):  # the file in force when the code runs counts
        with msctx.context(print_file_path=tmp_path / name):
            z = compiled(x)
            if trains:
                z.sum().backward()
        found = msctx.parse_print(tmp_path / name)
        assert [v for v in found if isinstance(v, str)] == ["first", "second", "third"]
        for left, right in zip(found, expected, strict=True):
            assert left == right if isinstance(left, str) else torch.allclose(left, right)


def test_threads_and_forked_processes_never_tear_a_record(tmp_path: Path) -> None:
    def fill(mark: int) -> None:
        for _ in range(40):
            PRINT(str(mark), torch.full((5000,), mark), torch.full((3,), mark))

    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT()  # makes the file
        children = []
        for mark in range(3):
            if not (child := os.fork()):
                try:
                    fill(mark)
                finally:
                    os._exit(0)
            children.append(child)
        threads = [threading.Thread(target=fill, args=(mark,)) for mark in range(3, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for child in children:
            os.waitpid(child, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    found = msctx.parse_print(tmp_path / "p")
    assert len(found) == 6 * 40 * 3
    for text, long, short in zip(*[iter(found)] * 3, strict=True):
        assert (long == int(text)).all()
        assert (short == int(text)).all()


def test_a_folder_that_is_not_there_costs_one_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with msctx.context(print_file_path=tmp_path / "none" / "p"):
        assert len(recwarn) == 1, "at the entry"
        for _ in range(3):
            PRINT("x")
        assert PRINT.file is None
    (found,) = recwarn
    assert found.category is MsctxWarning
    assert "none/p (No such file or directory)" in str(found.message)
