"""What the user files say about the launch."""

from __future__ import annotations

import os

import pytest

from Middleware.addons.init import demo
from Middleware.cli import announcement, served_users
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.program import StartError
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.config import paths as config_paths
from Tests.windows import needs_links


def test_a_configured_user_without_a_file_is_named_with_the_path(config):
    instance.USERS = ["Zed"]
    with pytest.raises(StartError) as error:
        served_users.check_users()
    path = os.path.join(str(config.path), "Users", "zed.json")
    assert str(error.value) == f"Config file not found for user 'Zed': {path}"


@pytest.mark.parametrize(("wrong", "hint"), [("Annn", " Did you mean 'Ann'?"), ("zzz", "")])
def test_the_users_that_exist_are_named(config, wrong, hint):
    for name in ("bob", "Ann"):
        config.user(name)
    config.current("bob")
    instance.USERS = [wrong]
    with pytest.raises(StartError) as error:
        served_users.check_users()
    assert str(error.value).splitlines()[1:] == [f"The users that exist: Ann, bob.{hint}"]


@pytest.mark.parametrize(
    ("wrong", "near"), [("wiki", "_wiki"), ("_wikki", "_wiki"), ("team/joan", "team/john"), ("john", "team/john")]
)
def test_near_names_come_first(config, wrong, near):
    (config.path / "Users" / "team").mkdir()
    for name in ("bob", "ann", "_wiki", "team/john"):
        config.user(name)
    config.current("bob")
    instance.USERS = [wrong]
    with pytest.raises(StartError) as error:
        served_users.check_users()
    names = error.value.args[0].partition("The users that exist: ")[2].partition(".")[0].split(", ")
    assert names[0] == near and sorted(names) == ["_wiki", "ann", "bob", "team/john"]
    assert str(error.value).endswith(f" Did you mean '{near}'?")
    instance.USERS = [near]
    served_users.check_users()


@needs_links
def test_a_link_that_leads_nowhere_is_no_user(config):
    config.user("bob")
    (config.path / "Users" / "alice.json").symlink_to("gone.json")
    instance.USERS = ["alice"]
    with pytest.raises(StartError, match=r"The users that exist: bob\.$"):
        served_users.check_users()


def test_a_user_without_a_flag_of_its_own(config):
    instance.CONFIG_DIRECTORY, instance.PUBLIC_DIRECTORY = "Bob", str(config.path.parent)
    config.user("bob")
    assert served_users.second_user("Bob") == ""  # nobody was named before it
    instance.USERS = ["ann"]
    assert served_users.second_user("Bob") == (
        "There is no configuration folder 'Bob', but a user of that name. Each user has a flag: --User ann --User Bob"
    )
    assert (
        served_users.second_user("kim")
        == served_users.second_user(str(config.path))
        == served_users.second_user(None)
        == ""
    )


def test_many_users_are_counted(config):
    for number in range(30):
        config.user(f"u{number:02}")
    instance.USERS = ["zzz"]
    with pytest.raises(StartError, match=r": u00, u01, .*u11 and 18 more\.$"):
        served_users.check_users()


@pytest.mark.parametrize("configured", [None, ["ann"]])
def test_a_folder_that_does_not_exist(config, tmp_path, configured):
    instance.CONFIG_DIRECTORY, instance.USERS = str(tmp_path / "nowhere"), configured
    with pytest.raises(StartError) as error:
        served_users.check_users()
    assert str(error.value).endswith(
        f"There is no configuration folder {tmp_path / 'nowhere'}. Name the folder that holds 'Users', 'Endpoints' and "
        "the others with --ConfigDirectory."
    )
    assert str(error.value).startswith("Config file not found for user 'ann': " if configured else "There is no")


@pytest.mark.parametrize("there", [False, True])
def test_a_public_folder_that_does_not_exist(config, tmp_path, there):
    public = tmp_path / "Pulic"
    if there:
        public.mkdir()
    instance.CONFIG_DIRECTORY, instance.PUBLIC_DIRECTORY = None, str(public)
    with pytest.raises(StartError) as error:
        served_users.check_users()
    missing = public / "Configs" if there else public
    assert str(error.value) == (
        f"There is no folder {missing}. Name the folder that holds 'Configs' with --PublicDirectory."
    )


def test_the_folder_above_the_configuration(config, tmp_path):
    instance.CONFIG_DIRECTORY = str(tmp_path)
    with pytest.raises(StartError) as error:
        served_users.check_users()
    assert str(error.value) == (
        f"The configuration folder {tmp_path} holds no folder 'Users'. Did you mean {tmp_path / 'Configs'}?"
    )


def test_another_folder(config, tmp_path):
    instance.CONFIG_DIRECTORY = str(config.path / "Users")
    with pytest.raises(StartError, match="holds no folder 'Users'. Name the folder that holds"):
        served_users.check_users()


@pytest.mark.parametrize(
    ("flag", "named", "meant"),
    [
        ("--ConfigDirectory", ".", "Public/Configs"),
        ("--ConfigDirectory", "Configs", "Public/Configs"),
        ("--ConfigDirectory", "Public/Configs/Users", "Public/Configs"),
        ("--PublicDirectory", ".", "Public"),
        ("--PublicDirectory", "Configs", "Public"),
        ("--PublicDirectory", "Public/Configs", "Public"),
        ("--PublicDirectory", "Public/Configs/Users", "Public"),
        ("--PublicDirectory", "Public/logs", ""),
    ],
)
def test_a_folder_near_the_one_that_is_meant(config, tmp_path, flag, named, meant):
    (tmp_path / "Public").mkdir()
    config.path.rename(tmp_path / "Public" / "Configs")
    instance.CONFIG_DIRECTORY = str(tmp_path / named) if flag == "--ConfigDirectory" else None
    instance.PUBLIC_DIRECTORY = str(tmp_path / named) if flag == "--PublicDirectory" else None
    with pytest.raises(StartError) as error:
        served_users.check_users()
    shown = f"{flag} {tmp_path / meant}" if flag == "--PublicDirectory" else str(tmp_path / meant)
    assert str(error.value).endswith(f" Did you mean {shown}?" if meant else " with --PublicDirectory.")


def test_the_users_of_the_system_are_no_configuration(monkeypatch):
    """Windows and macOS have a folder ``Users`` at the top."""
    top = os.path.abspath(os.sep)
    monkeypatch.setattr(config_paths, "holds_users", lambda folder: folder == top)
    assert config_paths.meant_folder(os.path.join(top, "no-such-folder")) == ""


def test_case_of_a_user_file_does_not_matter(config):
    config.user("alice")
    instance.USERS = ["ALICE"]
    served_users.check_users()


def test_a_user_name_that_is_a_path_is_refused(config):
    instance.USERS = ["../../etc/passwd"]
    with pytest.raises(StartError):
        served_users.check_users()


def test_a_broken_user_file_does_not_keep_the_server_down(config, capsys):
    """The check of the start reports it (``test_start_check``), and nothing before that does."""
    config.user("alice", text="{oops")
    instance.USERS = ["alice"]
    served_users.check_users()
    assert served_users.resolve_port() == 5000
    assert served_users.resolve_file_logging() is False
    assert capsys.readouterr().err == ""


def test_without_any_user_there_is_a_reason(config):
    with pytest.raises(StartError, match="_current-user"):
        served_users.check_users()
    config.user("ann")
    with pytest.raises(StartError, match=r"_current-user.json\.\nThe users that exist: ann\.$"):
        served_users.check_users()


def test_without_the_file_the_current_user_is_the_demo(config):
    config.user("demo", port=5099)
    served_users.check_users()
    assert served_users.current_user() == "demo" and served_users.resolve_port() == 5099
    assert announcement.describe_users() == "demo (without --User)"


def test_the_file_names_the_current_user(config):
    config.user("demo")
    config.user("ann")
    config.current("ann")
    assert announcement.describe_users() == "ann (from Users/_current-user.json)"


def test_a_current_user_without_a_file_does_not_keep_the_server_down(config, capsys):
    """The check of the start reports it (``test_start_check``), and nothing before that does."""
    config.current("ghost")
    served_users.check_users()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "port"),
    [
        ({"port": 5123}, 5123),
        ({"port": "5124"}, 5124),
        ({}, 5000),
        ({"port": None}, 5000),
        ({"port": "x"}, 5000),
        ({"port": 99999}, 5000),
        ({"port": True}, 5000),
    ],
)
def test_port_of_a_single_user(config, settings, port):
    config.user("ann", **settings)
    instance.USERS = ["ann"]
    assert served_users.resolve_port() == port


def test_port_of_the_current_user(config):
    config.user("ann", port=5999)
    config.current("ann")
    assert served_users.resolve_port() == 5999


def test_port_with_several_users_and_the_flag(config, capsys):
    config.user("ann", port=1)
    config.user("bob", port=2)
    instance.USERS = ["ann", "bob"]
    assert served_users.resolve_port() == 5050
    assert "5050" in capsys.readouterr().err
    instance.PORT = 6001
    assert served_users.resolve_port() == 6001


@pytest.mark.parametrize(
    ("given", "chosen"), [("logs/<user>", "logs/bob"), ("logs/", "logs/"), ("<user>/logs", "bob/logs")]
)
def test_log_directory_of_one_user(config, given, chosen):
    config.user("bob")
    instance.USERS = ["bob"]
    assert served_users.resolve_logging_directory(given) == chosen


def test_log_directory_of_the_current_user(config):
    config.current("kim")
    assert served_users.resolve_logging_directory("logs/<user>") == "logs/kim"


def test_log_directory_of_several_users_warns(config, capsys):
    instance.USERS = ["ann", "bob"]
    assert served_users.resolve_logging_directory("logs/<user>") == "logs"
    assert "WARNING" in capsys.readouterr().err


def test_default_log_directory_lies_in_the_public_directory(config, tmp_path):
    instance.USERS, instance.PUBLIC_DIRECTORY = ["ann"], str(tmp_path / "B")
    assert served_users.resolve_logging_directory(None) == os.path.join(str(tmp_path / "B"), "logs")


def test_file_logging(config):
    config.user("ann", useFileLogging=True)
    config.user("bob", useFileLogging="false")
    for chosen, result in ((["ann"], True), (["bob"], False), (["ann", "ann2"], False)):
        instance.USERS = chosen
        assert served_users.resolve_file_logging() is result
    instance.USERS, instance.FILE_LOGGING = ["bob"], True
    assert served_users.resolve_file_logging() is True


def test_demo_mode_needs_the_shipped_choice_and_nothing_else(config):
    config.user("demo")
    config.current("demo")
    assert demo.is_wanted(LaunchArguments()) and demo.is_first_start(LaunchArguments())
    for chosen in (
        LaunchArguments(config_directory="x"),
        LaunchArguments(public_directory="x"),
        LaunchArguments(users=["demo"]),
    ):
        # There is no endpoint file of the demo.
        assert not demo.is_wanted(chosen) and not demo.is_first_start(chosen)


def test_another_current_user_ends_demo_mode(config):
    config.user("me")
    config.current("me")
    assert not demo.is_wanted(LaunchArguments())


def test_without_a_list_of_keys_there_is_none(config):
    assert served_users.read_access_keys(None) is None


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "no such file"), ("# none\n", "no key"), ("sha256:1\n", "line 1")]
)
def test_a_list_of_keys_that_cannot_be_used_keeps_the_server_down(config, tmp_path, text, problem):
    path = tmp_path / "keys.txt"
    if text is not None:
        path.write_text(text, "utf-8")
    instance.USERS = ["ann", "bob"]
    with pytest.raises(StartError, match=problem) as error:
        served_users.read_access_keys(str(path))
    assert str(error.value).startswith("--accepted-keys-file: ") and str(path) in str(error.value)


@pytest.mark.parametrize("configured", [["ann"], ["ann", "bob"], None])
def test_keys_may_be_for_the_users_that_are_served(config, tmp_path, configured):
    config.current("ann")
    path = tmp_path / "keys.txt"
    path.write_text("a-key-of-some-length user=ann\n", "utf-8")
    instance.USERS = configured
    keys = served_users.read_access_keys(str(path))
    assert keys is not None and [key.user for key in keys.keys] == ["ann"]
