"""Running the checks of a contract, so that a failure tells which one it was."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Contract(ABC):
    """Checks of something new, each a method ``check_*`` that raises ``AssertionError``."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What is checked, for messages."""

    @classmethod
    def checks(cls) -> list[str]:
        """Return the names of the checks, in the order in which they run."""
        return [name for name in vars(cls) if name.startswith("check_")]

    def check_all(self) -> None:
        """Run every check; the first that fails ends it, with its name in the message."""
        for name in self.checks():
            try:
                getattr(self, name)()
            except AssertionError as error:
                raise AssertionError(f"{name} of {self.subject}: {error}") from error
            except Exception as error:
                error.add_note(f"raised in {name} of {self.subject}")
                raise
