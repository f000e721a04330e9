"""Gather, scatter, selection, advanced indexing and masks. This file imports nothing; import the modules."""
