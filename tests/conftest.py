"""Settings of every test.

Drawn examples are the same in every run, and may take any time: a test fails for what it found,
not for the draw or for the machine it ran on.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
