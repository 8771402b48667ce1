"""Keys and ciphers of stored data."""

from __future__ import annotations

import base64
import contextlib
import copy
import logging
import pickle
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import DataKeyError
from Middleware.utilities import encryption_utils
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    DataKey,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    is_token,
)
from Tests.patience import PATIENCE

ALICE = derive_encryption_key("secretkey", "alice")


def test_name_of_the_folder_of_a_key() -> None:
    assert hash_api_key("secretkey") == "ad165b11320bc915"


@pytest.mark.parametrize(
    "user, key",
    [
        ("alice", b"bI6XjhD1AtkdfHXFwtWDYVtA_ssohzDuZU9JwEyGBVc="),
        ("Alice", b"7ebYDDmF6hmu6UfkeA5CPBAP_VTcKji-2dq1v0YYYKE="),
        (None, b"X_1XiOPbYzVImWH63LYs6QeVMCBmhGEgAThzBzi3ouY="),
    ],
)
def test_key_derivation(user: str | None, key: bytes) -> None:
    assert derive_encryption_key("secretkey", user) == key


OTHER = cipher_for(derive_encryption_key("other", "alice"))
BASE64 = "ABCXYZabcxyz0189-_"
LOOKALIKES = st.one_of(
    st.binary(max_size=40),
    st.text(BASE64, max_size=130).map(lambda text: f"gAAAA{text}".encode()),
    st.tuples(st.integers(1, 9), st.sampled_from("AQgw_-")).map(
        lambda drawn: base64.urlsafe_b64encode(b"\x80" + bytes(4) + drawn[1].encode() * (52 + 16 * drawn[0]))
    ),
    st.binary(max_size=60).map(OTHER.encrypt),
).flatmap(lambda data: st.sampled_from([data, data + b"\n", data + b"\r\n", b"\n" + data, data + b"=", data[:-1]]))
"""What models write when they want to be funny, and tokens of another key."""


@given(LOOKALIKES)
def test_nothing_stored_in_clear_is_refused(data: bytes) -> None:
    stored = NO_CIPHER.encrypt(data)
    assert NO_CIPHER.decrypt(stored) == cipher_for(ALICE).decrypt(stored) == stored
    assert stored in (data, b" " + data) and (stored == data) is not is_token(data)


@pytest.mark.parametrize(
    "data, token",
    [
        (OTHER.encrypt(b""), True),
        (OTHER.encrypt(b"x" * 15), True),
        (OTHER.encrypt(b"x" * 16), True),
        (OTHER.encrypt(b"x" * 1000), True),
        (OTHER.encrypt(b"x") + b"\r\n", True),
        (b" " + OTHER.encrypt(b"x"), False),
        (OTHER.encrypt(b"x") + b" \n", False),
        (OTHER.encrypt(b"x")[:-4], False),
        (b"gAAAA", False),
        (b"gAAAA" + b"A" * 95, False),
        (b"gAAAAA, said the owl. " * 20, False),
        (b"gAAAAA" * 30, False),
        (OTHER.encrypt(b"x")[:-4] + b"A=A=", False),
        (b"gAAAA" + bytes([0xE9]) * 95, False),
        (b"", False),
    ],
    ids=map(str, range(15)),
)  # tokens differ from run to run
def test_tokens_are_known_by_their_shape(data: bytes, token: bool) -> None:
    assert is_token(data) is token


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


def test_what_is_derived_is_kept_and_the_api_key_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    derivations: list[str] = []
    real = encryption_utils._derive
    monkeypatch.setattr(
        encryption_utils, "_derive", lambda api_key, user: derivations.append(api_key) or real(api_key, user)
    )  # type: ignore
    keys = encryption_utils.DerivedKeys(2)
    for user in ("a", "b", "a", "c", "a", "b"):
        assert keys.get("sk-geheim", user) == derive_encryption_key("sk-geheim", user)
    assert len(derivations) == 4 + 3  # a, b, c, and b again; the other three are those of the cache of the process
    kept = [(mark, keys._kept.get(mark)) for mark in keys._kept.keys()]
    assert len(kept) == 2 and b"sk-geheim" not in pickle.dumps(kept) and hash_api_key("sk-geheim") not in str(kept)


def test_each_key_is_derived_once_and_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests of however many clients come at once; one that fails keeps nobody waiting."""
    known, running, most = [], [0], [0]
    guard, go = threading.Lock(), threading.Event()

    def derive(api_key: str, user: str | None) -> bytes:
        with guard:
            known.append(api_key)
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert go.wait(PATIENCE)
        with guard:
            running[0] -= 1
        if api_key == "bad" and known.count("bad") == 1:
            raise MemoryError
        return api_key.encode()

    monkeypatch.setattr(encryption_utils, "_derive", derive)
    keys = encryption_utils.DerivedKeys()
    got: list[bytes] = []

    def request(api_key: str) -> None:
        with contextlib.suppress(MemoryError):
            got.append(keys.get(api_key, "a"))

    names = [f"key {number % 8}" for number in range(40)] + ["bad"] * 3
    threads = [threading.Thread(target=request, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    # The first two are at work, and all others wait.
    while len(known) < 2:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert most[0] == 2
    assert {name: known.count(name) for name in set(known) - {"bad"}} == {f"key {number}": 1 for number in range(8)}
    assert sorted(got) == sorted([name.encode() for name in names[:40]] + [b"bad"] * 2) and keys._derived == {}


# -- several keys ------------------------------------------------------------------------------------------------------

BOB = derive_encryption_key("secretkey", "bob")


class Others:
    """Keys that are derived one by one, and only when they are needed."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys
        self.derived = 0

    def __call__(self) -> Iterator[bytes]:
        for key in self._keys:
            self.derived += 1
            yield key


def test_other_keys_are_derived_only_when_the_first_does_not_fit() -> None:
    others = Others(BOB, derive_encryption_key("secretkey", "carol"))
    cipher = cipher_for(DataKey(ALICE, others))
    assert cipher.decrypt(cipher.encrypt(b"x")) == b"x" and cipher.like(cipher.encrypt(b"x")) is cipher
    assert others.derived == 0
    assert cipher.decrypt(cipher_for(BOB).encrypt(b"y")) == b"y" and others.derived == 1
    with pytest.raises(DataKeyError):
        cipher.decrypt(OTHER.encrypt(b"z"))
    with pytest.raises(DataKeyError):
        cipher.like(OTHER.encrypt(b"z"))


def test_data_of_another_key_goes_on_with_it() -> None:
    cipher = cipher_for(DataKey(ALICE, Others(BOB)))
    fitting = cipher.like(cipher_for(BOB).encrypt(b"x"))
    assert cipher_for(BOB).decrypt(fitting.encrypt(b"y")) == b"y"
    assert fitting.decrypt(cipher_for(ALICE).encrypt(b"z")) == b"z" and fitting.mark != cipher.mark
    assert cipher.like(b"[]") is cipher and NO_CIPHER.like(b"[]") is NO_CIPHER
    with pytest.raises(DataKeyError):
        NO_CIPHER.like(cipher.encrypt(b"x"))


def test_a_key_does_not_show_itself() -> None:
    key = DataKey(ALICE, Others(BOB))
    assert pickle.loads(pickle.dumps(key)) == copy.deepcopy(key) == ALICE
    assert key == ALICE and ALICE.decode() not in repr(key) and cipher_for(key).mark == cipher_for(ALICE).mark
