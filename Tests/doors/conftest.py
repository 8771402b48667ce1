"""What the rows of one process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Tests.doors.trying import Lab, lab


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    with lab() as made:
        yield made
