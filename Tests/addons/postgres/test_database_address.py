"""No password in messages."""

from __future__ import annotations

from Middleware.addons.postgres.database_address import masked
from Tests.tables import table


@table(
    "url, shown",
    [
        ("postgresql://db/wilmer", "postgresql://db/wilmer"),
        ("postgresql://ann@db/wilmer", "postgresql://ann@db/wilmer"),
        (
            "postgresql://ann:geheim@db:5433/wilmer?sslmode=require",
            "postgresql://ann:***@db:5433/wilmer?sslmode=require",
        ),
        ("postgresql://ann:ge@heim@db/wilmer", "postgresql://ann:***@db/wilmer"),
        ("postgres://ann:geheim@a:1,b:2/wilmer", "postgres://ann:***@a:1,b:2/wilmer"),
        ("postgresql:///wilmer?user=ann&password=geheim", "postgresql:///wilmer?user=ann&password=***"),
        ("postgresql:///wilmer?sslpassword=geheim&host=db", "postgresql:///wilmer?sslpassword=***&host=db"),
        ("host=db user=ann password=geheim", "host=db user=ann password=***"),
        ("mysql://ann:geheim@db/wilmer", "mysql://ann:***@db/wilmer"),
    ],
)
def test_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
