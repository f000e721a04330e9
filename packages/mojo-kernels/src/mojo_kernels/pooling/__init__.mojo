"""Pooling over one to three spatial dimensions."""
