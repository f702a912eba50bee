"""WHAT can be set: one declaration per option. Imports no torch."""

from msctx.options.option import DEVICES, GROUPS, NAMESPACES, UNSET, Option, Setting, device_of
from msctx.options.registry import OPTIONS, find, is_dictionary, known_to_ge, make_layer, option_of
from msctx.options.settings import Layer, Settings

__all__ = [
    "DEVICES",
    "GROUPS",
    "NAMESPACES",
    "OPTIONS",
    "UNSET",
    "Layer",
    "Option",
    "Setting",
    "Settings",
    "device_of",
    "find",
    "is_dictionary",
    "known_to_ge",
    "make_layer",
    "option_of",
]
