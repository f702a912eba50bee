"""Stack traces as torch keeps them: each frame, whatever stands between them."""

import traceback

from msctx.observers.stack_traces import Frame, frames


def test_what_python_writes_is_read_back() -> None:
    stack = traceback.extract_stack()
    found = [*frames("".join(traceback.format_list(stack)))]
    assert found == [Frame(one.filename, one.lineno or 0, one.name, one.line or "") for one in stack]


def test_a_frame_without_source_takes_no_other_one_for_it() -> None:
    trace = '  File "<string>", line 1, in f\n  File "a, line b.py", line 2, in <module>\n    f(x)\n      ^^^^\n'
    assert [*frames(trace)] == [Frame("<string>", 1, "f", ""), Frame("a, line b.py", 2, "<module>", "f(x)")]


def test_nothing_is_read_from_nothing() -> None:
    assert [*frames("")] == []
