"""The command line."""

from __future__ import annotations

import os

import pytest

from Middleware.cli.arguments import apply_arguments, parse_arguments
from Middleware.common import instance_global_variables as instance
from Tests.tables import table

DIRECTORY_FLAGS = {
    "--ConfigDirectory": "config_directory",
    "--PublicDirectory": "public_directory",
    "--DiscussionDirectory": "discussion_directory",
    "--UserLevelSqlLiteDirectory": "sqlite_directory",
}


@table("flag", DIRECTORY_FLAGS)
@table(
    ("typed", "kept"),
    [
        ("/srv/cfg///", "/srv/cfg"),
        ("/srv/cfg\\", "/srv/cfg"),
        ("  /srv/cfg ", "/srv/cfg"),
        ("   ", None),
        ("", None),
        ("///", None),
        ('/srv/cfg"', "/srv/cfg"),
        ("~/cfg", os.path.expanduser("~") + "/cfg"),
    ],
)
def test_directories_are_cleaned(flag, typed, kept):
    assert getattr(parse_arguments([flag, typed]), DIRECTORY_FLAGS[flag]) == kept


def test_logging_directory_keeps_its_trailing_separator():
    assert parse_arguments(["--LoggingDirectory", " logs/ "]).logging_directory == "logs/"


@pytest.mark.skipif(os.name == "nt", reason="there it is an ordinary path")
def test_windows_path_elsewhere_is_ignored_with_a_warning(capsys):
    assert parse_arguments(["--DiscussionDirectory", "D:\\chats"]).discussion_directory is None
    assert "Windows path" in capsys.readouterr().err


def test_flags_beat_positionals():
    arguments = parse_arguments(["cfg/", "bob", "ignored", "--User", "eve"])
    assert (arguments.config_directory, arguments.users) == ("cfg", ["eve"])
    assert parse_arguments(["cfg/", "bob"]).users == ["bob"]
    assert parse_arguments(["--ConfigDirectory", "a", "cfg"]).config_directory == "a"
    assert parse_arguments(["cfg", "--port", "1", "bob"]).users == ["bob"]


@pytest.mark.parametrize(
    ("typed", "users"), [(["  "], []), (["a", "b"], ["a", "b"]), (["a", " a ", ""], ["a"]), (["ALICE"], ["ALICE"])]
)
def test_users(typed, users):
    assert parse_arguments([word for name in typed for word in ("--User", name)]).users == users


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], None),
        (["--listen"], "0.0.0.0"),
        (["--listen", " 10.0.0.4 "], "10.0.0.4"),
        (["--listen", "::"], "::"),
        (["--listen", "[::1]"], "::1"),
        (["--listen", ""], None),
    ],
)
def test_listen(words, address):
    assert parse_arguments(words).listen == address


@table(
    ("words", "message"),
    [
        (["--concurrency", "-1"], "--concurrency must be >= 0"),
        (["--concurrency", "x"], "--concurrency"),
        (["--concurrency-timeout", "0"], "--concurrency-timeout must be > 0"),
        (["--concurrency-timeout", "-2"], "--concurrency-timeout must be > 0"),
        (["--concurrency-timeout", "nan"], "--concurrency-timeout must be > 0"),
        (["--concurrency-level", "x"], "--concurrency-level"),
        (["--max-request-mb", "-1"], "--max-request-mb must be >= 0"),
        (["--max-request-mb", "1.5"], "--max-request-mb"),
        (["--workers", "0"], "--workers must be >= 1"),
        (["--workers", "2"], "--workers needs --database when there are several"),
        (["--drain-seconds", "-1"], "--drain-seconds must be >= 0"),
        (["--drain-seconds", "nan"], "--drain-seconds must be >= 0"),
        (["--drain-seconds", "inf"], "--drain-seconds must be >= 0"),
        (["--accepted-keys-file", ""], "--accepted-keys-file needs"),
        (["--accepted-keys-file", "  "], "--accepted-keys-file needs"),
        (["--allow-origin", "chat.example.com"], "not 'chat.example.com'"),
        (["--allow-origin", "https://chat.example.com/ui"], "not 'https://chat.example.com/ui'"),
        (["--allow-origin", "https://a.b", "--allow-origin", ""], "--allow-origin takes"),
        (["--allow-origin", "*"], "together with --accepted-keys-file"),
        (["--allow-origin", "null"], "together with --accepted-keys-file"),
        (["--port", "70000"], "--port"),
        (["--listen", "cfg/"], "--ConfigDirectory"),
        (["--log-level", "chatty"], "--log-level"),
        (["--unknown"], "--unknown"),
    ],
)
def test_bad_values_exit_with_2_and_usage(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(words)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and "usage:" in error


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--accept-keys-file", "k"], ["--accepted-keys-file"]),
        (["--accepted-keyfile=k"], ["--accepted-keys-file"]),
        (["--discusiondirectory", "d"], ["--DiscussionDirectory"]),
        (["-port", "1"], ["--port"]),
        (["--prot", "1", "--Users", "ann"], ["--port", "--User"]),
    ],
)
def test_an_option_that_is_like_a_known_one(words, meant, capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(words, "server.py")
    error = capsys.readouterr().err
    assert stop.value.code == 2 and "usage:" not in error and len(error.splitlines()) == 1
    assert all(f"Did you mean {option}?" in error for option in meant)
    assert error.startswith(f"server.py: error: there is no option {words[0].partition('=')[0]}.")


def test_listen_that_swallowed_a_directory_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cfg").mkdir()
    with pytest.raises(SystemExit):
        parse_arguments(["--listen", "cfg"])
    assert "directory" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.startswith("WilmerAI ")


def test_what_is_not_given_stays_as_it_was(monkeypatch):
    for name, value in (
        ("CONFIG_DIRECTORY", "kept"),
        ("USERS", ["kept"]),
        ("PORT", 7),
        ("FILE_LOGGING", True),
        ("LISTEN_ADDRESS", "10.1.1.1"),
        ("CONCURRENCY_LIMIT", 9),
        ("CONCURRENCY_TIMEOUT", 9),
        ("CONCURRENCY_LEVEL", "endpoint"),
        ("MAX_REQUEST_MB", 9),
        ("PUBLIC_DIRECTORY", None),
    ):
        monkeypatch.setattr(instance, name, value)
    apply_arguments(parse_arguments(["--PublicDirectory", "pub"]))
    assert (
        instance.CONFIG_DIRECTORY,
        instance.USERS,
        instance.PORT,
        instance.FILE_LOGGING,
        instance.LISTEN_ADDRESS,
        instance.PUBLIC_DIRECTORY,
    ) == ("kept", ["kept"], 7, True, "10.1.1.1", "pub")
    assert (
        instance.CONCURRENCY_LIMIT,
        instance.CONCURRENCY_TIMEOUT,
        instance.CONCURRENCY_LEVEL,
        instance.MAX_REQUEST_MB,
    ) == (1, 900, "wilmer", 256)


def test_everything_given_is_stored(monkeypatch):
    for name in (
        "CONFIG_DIRECTORY",
        "USERS",
        "PORT",
        "FILE_LOGGING",
        "LISTEN_ADDRESS",
        "CONCURRENCY_LIMIT",
        "CONCURRENCY_TIMEOUT",
        "CONCURRENCY_LEVEL",
        "PUBLIC_DIRECTORY",
        "DISCUSSION_DIRECTORY",
        "USER_LEVEL_SQLITE_DIRECTORY",
        "MAX_REQUEST_MB",
    ):
        monkeypatch.setattr(instance, name, None)
    apply_arguments(
        parse_arguments(
            "--ConfigDirectory A --PublicDirectory B --DiscussionDirectory C --UserLevelSqlLiteDirectory D "
            "--User u --User v --file-logging --port 81 --listen 10.0.0.4 --concurrency 0 --concurrency-timeout 2.5 "
            "--concurrency-level endpoint --max-request-mb 0".split()
        )
    )
    assert (
        instance.CONFIG_DIRECTORY,
        instance.PUBLIC_DIRECTORY,
        instance.DISCUSSION_DIRECTORY,
        instance.USER_LEVEL_SQLITE_DIRECTORY,
    ) == ("A", "B", "C", "D")
    assert (instance.USERS, instance.FILE_LOGGING, instance.PORT, instance.LISTEN_ADDRESS) == (
        ["u", "v"],
        True,
        81,
        "10.0.0.4",
    )
    assert (
        instance.CONCURRENCY_LIMIT,
        instance.CONCURRENCY_TIMEOUT,
        instance.CONCURRENCY_LEVEL,
        instance.MAX_REQUEST_MB,
    ) == (0, 2.5, "endpoint", 0)


def test_public_clients_need_a_flag():
    assert parse_arguments(["--listen"]).allow_public is False
    assert parse_arguments(["--listen", "--allow-public"]).allow_public is True


def test_accepted_keys_file_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_arguments(["--accepted-keys-file", " keys.txt "]).accepted_keys_file == str(tmp_path / "keys.txt")
    assert parse_arguments(["--accepted-keys-file", "~/k"]).accepted_keys_file == os.path.join(
        os.path.abspath(os.path.expanduser("~")), "k"
    )
    assert parse_arguments([]).accepted_keys_file is None


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (
            ["https://Chat.example.com/", "http://192.168.1.5:3000"],
            ("https://chat.example.com", "http://192.168.1.5:3000"),
        ),
        ([" https://a.b:443 "], ("https://a.b",)),
        (["app://obsidian.md"], ("app://obsidian.md",)),
        ([], ()),
    ],
)
def test_allowed_origins(typed, kept):
    assert parse_arguments([word for text in typed for word in ("--allow-origin", text)]).allow_origins == kept


@pytest.mark.parametrize("origin", ["*", "null"])
def test_every_page_may_be_allowed_where_keys_are_asked_for(origin, monkeypatch):
    monkeypatch.setattr(instance, "ALLOWED_ORIGINS", ())
    arguments = parse_arguments(["--allow-origin", origin, "--accepted-keys-file", "k"])
    apply_arguments(arguments)
    assert instance.ALLOWED_ORIGINS == arguments.allow_origins == (origin,)


@table("words", [["--User", "ann"], ["--user", "ann"], ["--USER=ann"]])
def test_options_in_any_case(words):
    assert parse_arguments(words).users == ["ann"]


@table("option", ["--config-directory", "--configdirectory", "--Config-Directory"])
def test_options_with_hyphens_or_without(option):
    assert parse_arguments([option, "c"]).config_directory == "c"
