"""What stands in padding when a test says `poison`."""

import math

import pytest

POISON = (math.nan, math.inf, -math.inf, 1e30)


@pytest.fixture(params=POISON, ids=["nan", "inf", "minus_inf", "1e30"])
def poison(request):
    """A value that no computation survives if it is read."""
    return request.param
