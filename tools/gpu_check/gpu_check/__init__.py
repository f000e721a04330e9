"""Checks of GPU kernels on machines without a GPU: do they compile for every target, do they run in the simulator."""
