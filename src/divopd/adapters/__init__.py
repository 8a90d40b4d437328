"""divopd inside frameworks that people already run: a module for each, over `divopd.pool`."""
