"""Offline throughput: data sets, and the measurement."""
