"""Every error that tacit raises on purpose, in one tree.

::

    TacitError
    ├── UsageError            the caller asked for something impossible
    │   ├── SpecError         a name or parameter that does not exist, or text that does not parse
    │   ├── ParameterError    a known parameter with a value outside its range
    │   ├── InputError        a tensor or array of the wrong shape, type or content
    │   └── KnowledgeError    an attack without the side information that it declares
    ├── ReleaseError          a release did not pass its checks; nothing was released
    │   ├── ReplayError       a step was asked for again with other content
    │   └── BudgetError       a release would spend more than the budget leaves
    ├── PeerError             the other party sent something that the rules do not allow
    └── LostError             the connection to the other party is gone; it may be tried again
        └── SilenceError      nothing came from the other party for too long

A message gives the rule, the value and the way out, in one line.
"""

from __future__ import annotations


class TacitError(Exception):
    """The root of every error that a user can cause."""


class UsageError(TacitError, ValueError):
    """The caller asked for something impossible: a mistake to correct, exit code 2."""


class SpecError(UsageError):
    """A spec string names something unknown or does not parse."""


class ParameterError(UsageError):
    """A parameter has a value outside its range."""


class InputError(UsageError):
    """A tensor or array has the wrong shape, type or content."""


class KnowledgeError(UsageError):
    """An attack was run without the side information that it declares."""


class ReleaseError(TacitError, RuntimeError):
    """A release did not pass its checks; nothing was released."""


class ReplayError(ReleaseError):
    """A step was asked for again with other content; fresh noise would be averaged away."""


class BudgetError(ReleaseError):
    """A release would spend more of some example's budget than is left; nothing was released."""


class PeerError(TacitError, RuntimeError):
    """The other party sent something that the rules do not allow; the connection must end.

    Attributes:
        source: the connection that it came over, where there are several.
    """

    source: object | None = None


class LostError(TacitError, RuntimeError):
    """The connection to the other party is gone; nothing was done wrong, and it may be retried."""


class SilenceError(LostError):
    """Nothing came from the other party for too long."""
