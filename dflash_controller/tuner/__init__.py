"""Finds the fastest block size for the current load, from acceptance length by block and step time by block and concurrency."""
