"""Matrix products: packed, register-tiled GEMM for CPUs and tiled GEMM for GPUs.
"""
