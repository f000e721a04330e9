"""Loss functions and their gradients. This file imports nothing; import the modules."""
