"""What every test shares: the checkout, and hypothesis without a clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code.
settings.register_profile("steptime", deadline=None)
settings.load_profile("steptime")

_REPO = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return _REPO


@pytest.fixture(scope="session")
def sample(repo: Path) -> Path:
    """The sample job: two gloo ranks on the CPU."""
    return repo / "traces" / "gloo_ddp_2ranks"
