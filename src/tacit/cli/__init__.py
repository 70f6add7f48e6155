"""The ``tacit`` command."""

from tacit.cli.app import main

__all__ = ["main"]
