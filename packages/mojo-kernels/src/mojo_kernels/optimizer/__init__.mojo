"""Kernels over lists of tensors: fused optimizer steps and the `_foreach` family. Imports nothing; import the modules."""
