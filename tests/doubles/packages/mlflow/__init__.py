"""Stands for MLflow where it is not installed: what a client is told lies in one JSON file of the tracking folder."""
