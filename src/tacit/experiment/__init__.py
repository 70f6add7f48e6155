"""Experiments: configured training runs, sweeps of them, and what is measured."""
