"""Attacks that train a model of their own: gradient matching and model completion."""
