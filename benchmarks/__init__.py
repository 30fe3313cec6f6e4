"""Benchmarks of the frontend's books against upstream's: `python -m benchmarks.log`."""
