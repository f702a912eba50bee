"""WHAT can be set: one declaration per option. Imports no torch."""

from msctx.options.option import DEVICES, UNSET, Option, Setting, device_of
from msctx.options.registry import OPTIONS, find, make_layer, option_of
from msctx.options.settings import Layer, Settings

__all__ = ["DEVICES", "OPTIONS", "UNSET", "Layer", "Option", "Setting", "Settings"]
__all__ += ["device_of", "find", "make_layer", "option_of"]
