"""Conformance: small pieces of graph code, what a real GPU did with each, and whether the simulated device does the same."""
