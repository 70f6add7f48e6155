"""Tapes: everything that a feature party saw, on disk; also those that other systems recorded."""

from tacit.tape.columns import ColumnTape
from tacit.tape.imports import open_tape
from tacit.tape.tape import RecordedTape, Recording, Sent, TapeWriter

__all__ = ["ColumnTape", "RecordedTape", "Recording", "Sent", "TapeWriter", "open_tape"]
