"""The guard: one line in any PyTorch loop, and every check that a release must pass."""

from tacit.guard.guard import Guard, is_guarded

__all__ = ["Guard", "is_guarded"]
