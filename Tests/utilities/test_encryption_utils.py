"""Keys and ciphers of stored data."""
from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import DataKeyError
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    is_token,
)

ALICE = derive_encryption_key("secretkey", "alice")


def test_name_of_the_folder_of_a_key() -> None:
    assert hash_api_key("secretkey") == "ad165b11320bc915"


@pytest.mark.parametrize("user, key", [
    ("alice", b"bI6XjhD1AtkdfHXFwtWDYVtA_ssohzDuZU9JwEyGBVc="),
    ("Alice", b"7ebYDDmF6hmu6UfkeA5CPBAP_VTcKji-2dq1v0YYYKE="),
    (None, b"X_1XiOPbYzVImWH63LYs6QeVMCBmhGEgAThzBzi3ouY="),
])
def test_key_derivation(user: str | None, key: bytes) -> None:
    assert derive_encryption_key("secretkey", user) == key


@given(st.binary(max_size=200).filter(lambda data: not is_token(data)))
def test_round_trip(data: bytes) -> None:
    cipher = cipher_for(ALICE)
    token = cipher.encrypt(data)
    assert is_token(token) and cipher.decrypt(token) == data and cipher.decrypt(token + b"\n") == data


def test_data_in_clear_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert cipher_for(ALICE).decrypt(b"[1]") == b"[1]"
    assert "not encrypted" in caplog.text


def test_tokens_of_another_key_are_refused() -> None:
    token = cipher_for(derive_encryption_key("other", "alice")).encrypt(b"x")
    with pytest.raises(DataKeyError):
        cipher_for(ALICE).decrypt(token)
    with pytest.raises(DataKeyError):
        NO_CIPHER.decrypt(token)


def test_without_a_key_nothing_changes() -> None:
    assert cipher_for(None) is NO_CIPHER and not NO_CIPHER.active
    assert NO_CIPHER.decrypt(NO_CIPHER.encrypt(b"x")) == b"x"
