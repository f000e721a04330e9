"""Which op is served by which kernel: rows in `tables/`, Python functions in one module per family."""
