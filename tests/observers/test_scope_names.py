"""How the modules around an operator are written."""

from torch import nn

import msctx
from msctx.observers import scope_names


def test_with_and_without_classes() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)]), "fc": nn.Sequential(nn.ReLU())})
    with msctx.context().watch(model):
        assert scope_names.parts("fc.0") == ["Default", "fc-Sequential", "0-ReLU"]
        assert scope_names.parts("layers.0") == ["Default", "layers", "0-Linear"], "nobody calls a ModuleList"
        with msctx.context(reserve_class_name_in_scope=False):
            assert scope_names.parts("fc.0") == ["Default", "fc", "0"]
        assert scope_names.parts("") == ["Default"]
        assert scope_names.parts("unknown") == ["Default", "unknown"]
