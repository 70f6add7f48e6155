"""Readers of the public data sets, one file per format."""
