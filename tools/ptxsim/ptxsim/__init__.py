"""Runs GPU kernels without a GPU: a PTX interpreter, and a stand-in for the device half of Mojo's AsyncRT."""

from .asyncrt import Launch, Simulator
from .errors import Hazard, PtxError, Unsupported
from .memory import DeviceArray, DeviceMemory
from .module import Module
from .state import LaunchReport, Options

__all__ = [
    "DeviceArray",
    "DeviceMemory",
    "Hazard",
    "Launch",
    "LaunchReport",
    "Module",
    "Options",
    "PtxError",
    "Simulator",
    "Unsupported",
]
