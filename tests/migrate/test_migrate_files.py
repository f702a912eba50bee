"""`msctx migrate`: files that cannot be read, encodings, large scripts and hostile texts."""

import warnings

import pytest
from migrations import check_outputs, problem_of, reported

from msctx import migrate


def test_a_syntax_error_has_its_place(write):
    text = problem_of(write("import mindspore as ms\nms.set_context(mode=)\n"))
    first, line, caret = text.splitlines()
    assert "train.py:2:" in first
    assert "this is not Python" in first
    assert line == "    2 | ms.set_context(mode=)"
    assert "^" in caret


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"x = '\xff'\n\n", "save it as UTF-8"),
        (b"# a\n# b\n# c\nx = '\xff'\n", "cannot be decoded"),
        (b"# coding: no-such\n", "cannot be decoded"),
        (b"# coding: rot13\n", "cannot be decoded"),
        (b"x = 1\0\n", "null byte"),
        (b"print 'hello'\n", "this is not Python"),
        (b"x = " + b"-" * 200_000 + b"1", "nested too deeply"),
    ],
)
def test_files_that_cannot_be_read(write, content, expected):
    assert expected.lower() in problem_of(write(content)).lower()


def test_files_that_are_not_there(tmp_path):
    assert "No such file" in problem_of(str(tmp_path / "no.py"))
    assert "directory" in problem_of(str(tmp_path))
    assert "cannot be read" in problem_of("a\0b")


CALL = "import mindspore as ms\nms.set_context(save_graphs_path='grün', mode=7)\n"


@pytest.mark.parametrize(
    "content",
    [
        CALL.encode(),
        CALL.encode("utf-8-sig"),
        b"# -*- coding: latin-1 -*-\n" + CALL.encode("latin-1"),
        CALL.replace("\n", "\r\n").encode(),
        CALL.replace("\n", "\r").encode(),
        ("\x0c\n" + CALL.replace("\n", "  # \x0c \x85 \u2028\n")).encode(),
    ],
)
def test_encodings_and_line_ends(write, content, tmp_path):
    migration = migrate.read(write(content))
    assert migration.options == {"save_graphs_path": "grün"}
    (problem,) = migration.problems
    assert problem.mark.text[problem.mark.column - 1] == "7"
    check_outputs(migration, tmp_path)


def test_a_file_without_calls(write):
    migration = migrate.read(write("import mindspore\nx = mindspore.get_context('mode')\n"))
    assert reported(migration) == ["- : no call that sets MindSpore's context was found"]
    assert migrate.as_yaml(migration).endswith("context: {}\n")
    assert migrate.read(write("")).calls == ()


@pytest.mark.parametrize(
    "text",
    [
        "if a: pass\n" + "elif a: pass\n" * 400 + "else: ms.set_context(mode=0)",
        "".join(f"a{i} = a{i + 1}\n" for i in range(3000)) + "a3000 = 1\nms.set_context(device_id=a0, mode=0)",
        "".join(f"a{i} = [a{i + 1}, a{i + 1}]\n" for i in range(60)) + "ms.set_context(device_id=a0, mode=0)",
        "".join(f"a{i} = {{**a{i + 1}, **a{i + 1}}}\n" for i in range(60)) + "ms.set_context(mode=0, **a0)",
        "\n".join(["ms.set_context(mode=0)"] * 2000),
    ],
)
def test_large_scripts_are_read_in_time(of, text):
    assert of(text).options == {"mode": 0}


def test_warnings_about_the_script_are_not_ours(write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        migrate.read(write("x = '\\d'\nassert (1, 2)\n1 is 1\n"))


def test_a_notebook_is_refused_with_the_command_that_makes_a_script(tmp_path):
    (tmp_path / "a.ipynb").write_text("{}")
    assert f"jupyter nbconvert --to script {tmp_path}/a.ipynb" in problem_of(str(tmp_path / "a.ipynb"))
