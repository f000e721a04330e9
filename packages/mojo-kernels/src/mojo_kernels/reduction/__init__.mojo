"""Reductions over any set of dimensions: sums, extrema, their positions, norms, moments, logic.

`reduce.mojo` is the entry, `reducer.mojo` holds the arithmetic of each op, `plan.mojo` the layout, `cpu.mojo` and
`gpu.mojo` the loops.
"""
