"""Print and parse_print: what is written is read back, by protobuf too; files are never overwritten, records never torn."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
import msctx.mindspore as ms
from msctx.errors import FileError, MsctxWarning
from msctx.observers.print_format import NAMES, encode

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


# --- the format -------------------------------------------------------------------------------------------------------


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    given = [x for tensor in tensors() for x in ("", tensor, "naïve 文\n")]
    found = written(tmp_path / "p", *given)
    assert len(found) == len(given)
    for left, right in zip(found, given, strict=True):
        assert same(left, right if isinstance(right, str) else right.detach())


def test_numbers_are_tensors_without_dimensions_and_lists_are_their_values(tmp_path: Path) -> None:
    found = written(tmp_path / "p", True, [3, (2.5, "x")])
    assert [x if isinstance(x, str) else (x.item(), x.dtype, x.dim()) for x in found] == [
        (True, torch.bool, 0),
        (3, torch.int64, 0),
        (2.5, torch.float32, 0),
        "x",
    ]


def test_the_bytes_are_those_of_the_format() -> None:
    record = encode(["ab", torch.tensor([[1, -1]], dtype=torch.int16)])
    tensor = b"\x08\x01\x08\x02\x12\x05Int16\x1a\x04\x01\x00\xff\xff"
    assert record == b"\x0a\x04\x0a\x02ab" + b"\x0a\x13\x12\x11" + tensor


def test_protobuf_reads_the_same(tmp_path: Path) -> None:
    """By a schema that is built here from the fields' names, numbers and types alone."""
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    from google.protobuf import descriptor_pb2, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="p", package="p", syntax="proto2")
    for name, fields in {
        "Tensor": [("dims", 1, 3, 3, ""), ("type", 2, 1, 9, ""), ("content", 3, 1, 12, "")],
        "Value": [("desc", 1, 1, 9, ""), ("tensor", 2, 1, 11, ".p.Tensor")],
        "Print": [("value", 1, 3, 11, ".p.Value")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, of in fields:
            message.field.add(name=field, number=number, label=label, type=kind, type_name=of or None)
    pool.Add(file)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Print"))
    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT("first", torch.ones(2, 3))
        PRINT(torch.zeros(300, dtype=torch.int8))
    found = kind.FromString((tmp_path / "p").read_bytes())
    assert [(v.desc, [*v.tensor.dims], v.tensor.type, len(v.tensor.content)) for v in found.value] == [
        ("first", [], "", 0),
        ("", [2, 3], "Float32", 24),
        ("", [300], "Int8", 300),
    ]
    (tmp_path / "theirs").write_bytes(found.SerializeToString())
    theirs, ours = msctx.parse_print(tmp_path / "theirs"), msctx.parse_print(tmp_path / "p")
    assert all(same(*pair) for pair in zip(theirs, ours, strict=True))


def test_what_other_writers_do(tmp_path: Path) -> None:
    """Older names of dtypes, packed dims, a number with the dims [0]."""
    (tmp_path / "p").write_bytes(
        b"\x0a\x10\x12\x0e\x0a\x01\x02\x12\x05Uint8\x1a\x02\x07\x08\x0a\x0d\x12\x0b\x08\x00\x12\x04Int8\x1a\x01\x05"
    )
    pair, number = msctx.parse_print(tmp_path / "p")
    assert same(pair, torch.tensor([7, 8], dtype=torch.uint8))
    assert same(number, torch.tensor(5, dtype=torch.int8))


# --- files that are wrong ---------------------------------------------------------------------------------------------


def test_every_cut_is_reported_or_leaves_whole_values(tmp_path: Path) -> None:
    record, path = encode(["text", torch.ones(40), torch.tensor(1)]), tmp_path / "p"
    between = {len(encode(["text"])), len(encode(["text", torch.ones(40)]))}
    for length in {*range(1, len(record))} - between:
        path.write_bytes(record[:length])
        with pytest.raises(FileError, match=r"p, byte \d+  parse_print: "):
            msctx.parse_print(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a foreign file", "no printed value"),
        (b"plain text\n", "no printed value"),
        (b"\x0a\x00", "no printed value"),
        (b"\x0a\x08\x12\x06\x12\x04Quux", "unknown type 'Quux'"),
        (encode([torch.ones(2)]).replace(b"\x08\x02", b"\x08\x03"), r"shape \[3\] and type Float32 has 8 bytes"),
        (
            b"\x0a\x18\x12\x16\x08\x00\x08\x85" + b"\x80" * 8 + b"\x01\x12\x07Float32",
            r"shape \[0, 9223372036854775813\] and type Float32 has 0 bytes",
        ),
        (b"\xff" * 30, "cut off, or no printed values"),
    ],
)
def test_foreign_files_are_reported(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(FileError, match=text):
        msctx.parse_print(tmp_path / "p")
    with pytest.raises(RuntimeError if content else ValueError, match=text):
        ms.parse_print(str(tmp_path / "p"))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        msctx.parse_print(tmp_path / "p")
    with pytest.raises(ValueError, match="No such file"):
        ms.parse_print(str(tmp_path / "p"))


# --- where it goes ----------------------------------------------------------------------------------------------------


def test_without_the_option_it_prints_as_mindspore_does(capsys: pytest.CaptureFixture[str]) -> None:
    PRINT("x:", torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([1.5], dtype=torch.bfloat16), 3)
    PRINT()
    assert capsys.readouterr().out == (
        "x:\nTensor(shape=[2, 2], dtype=Int32, value=\n[[1, 2],\n [3, 4]])\n"
        "Tensor(shape=[1], dtype=BFloat16, value= [ 1.50000000e+00])\nTensor(shape=[], dtype=Int64, value= 3)\n"
    )
    assert PRINT.file is None


def test_with_the_option_nothing_is_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "p", "x", torch.ones(2))
    assert capsys.readouterr().out == ""


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "p"
    for text in ("one", "two", "three"):
        with msctx.context(print_file_path=path):
            file = PRINT.file
            PRINT(text)
        assert file is not None
        assert msctx.parse_print(file) == [text]
    first, *others = sorted(tmp_path.iterdir())
    assert first == path
    assert len(others) == 2
    assert all(re.fullmatch(r"p\.\d{10}", other.name) for other in others)


def test_a_scope_that_prints_nothing_makes_no_file(tmp_path: Path) -> None:
    for _ in range(3):
        with msctx.context(print_file_path=tmp_path / "p"):
            pass
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    assert not [*tmp_path.iterdir()]


def test_a_relative_path_is_that_of_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    with msctx.context(print_file_path="p"):
        monkeypatch.chdir(tmp_path / "later")
        PRINT("x")
    assert msctx.parse_print(tmp_path / "p") == ["x"]


def test_a_scope_inside_with_the_same_file_goes_on_in_it(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT("a")
        with msctx.context(print_file_path=tmp_path / "p", deterministic="ON"):
            PRINT("b")
        with msctx.context(print_file_path=tmp_path / "q"):
            PRINT("c")
        PRINT("d")
    assert msctx.parse_print(tmp_path / "p") == ["a", "b", "d"]
    assert msctx.parse_print(tmp_path / "q") == ["c"]


def test_a_directory_is_an_error_before_anything_changes(tmp_path: Path) -> None:
    with pytest.raises(msctx.OptionError, match=r"print_file_path: .* is a directory\n.*allowed: the path of a file"):
        msctx.context(print_file_path=tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.yaml").write_text("context:\n  print_file_path: folder\n")
    with pytest.raises(msctx.OptionError, match=r"x\.yaml:2.*is a directory"):
        msctx.context(tmp_path / "x.yaml")


def test_mindspores_names(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        ms.ops.Print()("x")
    assert ms.parse_print(str(tmp_path / "p")) == ["x"]


@pytest.mark.parametrize("value", [None, object(), {}, torch.eye(2).to_sparse(), torch.ones(2).to(torch.float8_e5m2)])
def test_what_cannot_be_printed_raises_and_writes_nothing(tmp_path: Path, value: Any) -> None:
    with msctx.context(print_file_path=tmp_path / "p"), pytest.raises(TypeError, match=r"Print: .* cannot be printed; allowed"):
        PRINT("x", value)
    assert not (tmp_path / "p").exists()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_raises(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2)])
    with msctx.context(print_file_path=tmp_path / "p"), pytest.raises(TypeError, match="a tensor of layout nested and dtype"):
        PRINT("x", nested)
    assert not (tmp_path / "p").exists()


def test_a_number_beyond_64_bits_raises(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT(2**63 - 1, -(2**63))
        for number in (2**63, -(2**63) - 1):
            with pytest.raises(TypeError, match=rf"Print: {number} needs more than the 64 bits"):
                PRINT(number)
    assert [int(value) for value in msctx.parse_print(str(tmp_path / "p"))] == [2**63 - 1, -(2**63)]


def test_a_text_that_is_no_unicode_is_escaped(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT("a\udc80")
    assert msctx.parse_print(str(tmp_path / "p")) == ["a\\udc80"]


def test_a_tensor_without_values_raises_and_writes_nothing(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"), pytest.raises(TypeError, match="meta device has no values"):
        PRINT("x", torch.ones(2, device="meta"))
    assert not (tmp_path / "p").exists()


# --- inside torch -----------------------------------------------------------------------------------------------------


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


def test_gradients_and_modes_pass_by(tmp_path: Path) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        PRINT("forward", y)
        y.register_hook(lambda gradient: PRINT("backward", gradient))
        y.sum().backward()
        torch.func.grad(lambda a: (PRINT("grad", a * 1), (a * a).sum())[1])(torch.ones(2))
        torch.vmap(lambda a: (PRINT("vmap", a), a)[1])(torch.ones(2, 3))
        with torch.inference_mode():
            PRINT("inference", torch.ones(1))
    found = msctx.parse_print(tmp_path / "p")
    assert [v for v in found if isinstance(v, str)] == ["forward", "backward", "grad", "vmap", "inference"]
    assert [[*v.shape] for v in found if not isinstance(v, str)] == [[3], [3], [2], [2, 3], [1]]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


# --- writers beside each other, and bad days --------------------------------------------------------------------------


def test_threads_and_forked_processes_never_tear_a_record(tmp_path: Path) -> None:
    def fill(mark: int) -> None:
        for _ in range(40):
            PRINT(str(mark), torch.full((5000,), mark), torch.full((3,), mark))

    with msctx.context(print_file_path=tmp_path / "p"):
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
    assert "none/p cannot be created (No such file or directory)" in str(found.message)


def test_a_file_that_vanishes_costs_one_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with msctx.context(print_file_path=tmp_path / "p"):
        PRINT("a")
        (tmp_path / "p").unlink()
        for _ in range(3):
            PRINT("b")
    (found,) = recwarn
    assert "some records are missing" in str(found.message)
    assert not (tmp_path / "p").exists()


def test_a_full_disk_leaves_whole_records_and_costs_one_warning(tmp_path: Path, passes: Callable[..., str]) -> None:
    """A limit on files stands for the disk: a write ends in the middle of a record."""
    passes(f"""
        import resource, warnings
        import torch, msctx
        p = msctx.Print()
        with msctx.context(print_file_path={str(tmp_path / "p")!r}), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            p("x")  # what torch loads late is loaded
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            for _ in range(5):
                p("y", torch.ones(1000))
            p("z")
        assert len(caught) == 1, [str(w.message) for w in caught]
        assert "print_file_path" in str(caught[0].message)
        found = [v for v in msctx.parse_print({str(tmp_path / "p")!r}) if isinstance(v, str)]
        assert found == ["x", "y", "y", "z"], found
    """)


@pytest.mark.full
def test_a_fork_while_another_thread_prints_leaves_no_lock(tmp_path: Path, passes: Callable[..., str]) -> None:
    """The child inherits the file that is open at that moment, with its lock."""
    passes(f"""
        import os, threading, torch, msctx
        show = msctx.Print()
        with msctx.context(print_file_path={str(tmp_path / "p")!r}):
            show("warm", torch.ones(2))
            stop = threading.Event()
            def prints():
                while not stop.is_set():
                    show("x", torch.ones(50))
            thread = threading.Thread(target=prints)
            thread.start()
            for _ in range(50):
                if (child := os.fork()) == 0:
                    for _ in range(20):
                        show("y", torch.ones(5))
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            thread.join()
    """)
