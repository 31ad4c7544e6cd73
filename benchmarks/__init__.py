"""Benchmarks of the operator, the analysis and the tuner."""
