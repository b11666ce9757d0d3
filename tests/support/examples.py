"""How many examples a property test tries: all in `make test`, some in `make check`."""

from hypothesis import settings

QUICK = "quick"
"""Name of Hypothesis's profile in which every property test tries few examples."""
FEWER = 4


def examples(count: int) -> settings:
    """Decorate a property test that tries this many examples."""
    return settings(
        max_examples=count // FEWER if settings.get_current_profile_name() == QUICK else count
    )
