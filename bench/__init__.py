"""Benchmarks: each prints ratios against a named rival measured in the same run."""
