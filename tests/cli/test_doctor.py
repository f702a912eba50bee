"""The doctor outlives its patient."""

from __future__ import annotations

from msctx.cli.doctor import checks


def test_a_healthy_machine():
    found = {check.name: check for check in checks()}
    assert found["torch"].status == "ok"
    assert all(check.fix for check in found.values() if check.status != "ok")


def test_without_torch(passes_fresh):
    out = passes_fresh("""
        import sys
        sys.modules["torch"] = None
        from msctx.cli.doctor import checks
        for check in checks():
            print(check.name, check.status, check.fix)
    """)
    lines = out.splitlines()
    assert [line for line in lines if " broken " in line] == ["torch broken pip install 'torch>=2.11'"]
    assert any(line.startswith("numpy ok") for line in lines)


def test_a_check_that_fails_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("msctx.cli.doctor._compilers", lambda: 1 / 0)
    found = list(checks())
    assert any(check.status == "broken" and "ZeroDivisionError" in check.found for check in found)
    assert any(check.name == "numpy" for check in found)
