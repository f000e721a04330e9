"""Rows of uniform ops, a module per family; each exposes `ROWS`."""
