"""Guards the mechanism: a change to ``lookup`` that changes replies turns this red."""

import pytest
from toylm import lookup


@pytest.fixture
def lossguard_system():
    """What is judged: any function from prompts to replies."""
    return lookup


@pytest.mark.lossguard(claim="lookup/greedy", budget="210x24")
def test_lookup_is_lossless(lossguard):
    lossguard.assert_lossless()
