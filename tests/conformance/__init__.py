"""PyTorch's operator database on the mojo device; `python -m tests.conformance --help` says how to run it."""
