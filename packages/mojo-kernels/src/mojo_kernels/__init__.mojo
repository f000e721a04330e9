"""Kernels for CPUs and GPUs behind one calling convention (see `mojo_kernels.abi`).

Import the module that holds the kernel, e.g. `from mojo_kernels.pointwise.binary import binary`: this file imports
nothing, so that compiling one kernel parses only what it needs.
"""
