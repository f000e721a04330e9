"""Factorizations of batches of small matrices, one matrix to a thread."""
