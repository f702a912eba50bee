"""How the modules around an operator are written."""

import weakref
from collections import defaultdict

import pytest
from torch import nn

import msctx
from msctx.observers import scope_names


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.setattr(scope_names, "_modules", defaultdict(weakref.WeakSet))
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)]), "fc": nn.Sequential(nn.ReLU())})
    for path, module in model.named_modules():
        scope_names.meet(path, module)
    return model


@pytest.mark.usefixtures("model")
def test_with_and_without_classes() -> None:
    assert scope_names.parts("fc.0") == ["Default", "fc-Sequential", "0-ReLU"]
    assert scope_names.parts("layers.0") == ["Default", "layers", "0-Linear"], "nobody calls a ModuleList"
    with msctx.context(reserve_class_name_in_scope=False):
        assert scope_names.parts("fc.0") == ["Default", "fc", "0"]
    assert scope_names.parts("") == ["Default"]
    assert scope_names.parts("unknown") == ["Default", "unknown"]
