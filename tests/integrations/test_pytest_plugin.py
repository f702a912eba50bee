"""The plugin in test suites of its own, each in a fresh process."""

import textwrap

import pytest

MODULE = "msctx.integrations.pytest_plugin"


@pytest.fixture
def suite(tmp_path, passes):

    def run(source: str, *words: str) -> str:
        (tmp_path / "test_suite.py").write_text(textwrap.dedent(source))
        (tmp_path / "mine.yaml").write_text("context: {seed: 5}\n")
        command = ["-q", "-p", "no:cacheprovider", "--strict-markers", "-p", MODULE, *words]
        return passes(
            f"""
            import os, sys
            import pytest
            os.chdir({str(tmp_path)!r})
            sys.stderr = sys.stdout
            print("exit code", int(pytest.main({command!r})))
        """,
            env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )  # of which this plugin is one, where msctx is installed

    return run


MARKED = """
    import msctx, pytest, torch
    pytestmark = pytest.mark.msctx("reproducible", seed=1)

    @pytest.fixture
    def found():
        yield torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()  # until fixtures are gone

    @pytest.mark.msctx(seed=2, runtime_num_threads=1)
    class TestIt:
        def test_class(self, found):
            assert found and msctx.get_context("seed") == 2 and torch.get_num_threads() == 1

        @pytest.mark.msctx("mine.yaml", deterministic="OFF")
        def test_nearest(self):
            assert not torch.are_deterministic_algorithms_enabled()
            assert msctx.get_context("seed") == 5 and torch.get_num_threads() == 1

    def test_module(found):
        assert found and msctx.get_context("seed") == 1
"""


@pytest.mark.full
def test_marks_merge_and_the_nearest_wins(suite):
    assert "3 passed" in suite(MARKED)


@pytest.mark.full
def test_mistakes_are_told(suite):
    told = suite("""
        import pytest, torch
        @pytest.mark.msctx(deterministic="ON")
        @pytest.mark.msctx(sed=1)
        def test_wrong(): pass
        def test_after(): assert not torch.are_deterministic_algorithms_enabled()
    """)
    assert "1 passed, 1 error" in told
    assert "did you mean seed" in told


def test_a_project_that_does_not_use_it_pays_no_torch(passes_fresh):
    passes_fresh(f"import sys, {MODULE}; assert 'torch' not in sys.modules")
