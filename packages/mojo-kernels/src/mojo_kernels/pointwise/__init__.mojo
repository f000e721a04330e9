"""Elementwise kernels, one module per number and kind of operands. This file imports nothing; import the modules."""
