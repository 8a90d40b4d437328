"""A run on disk: its folder, checkpoints, published weights, loggers."""
