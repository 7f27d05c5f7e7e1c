"""Benchmarks: time, memory and scores compared with other programs."""
