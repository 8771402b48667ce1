"""``python server.py console``: prints a link that signs in to the run console of the running server.

A user who can read the secret in the console's folder is its operator; the link proves that. It is good once, for ten
minutes, and its code stands behind a ``#``, which browsers do not send.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from Middleware.addons.console.sessions import SessionTable
from Middleware.addons.console.sign_in import sign_in_link
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.cli.arguments import apply_arguments, build_command_parser, parse_command_arguments
from Middleware.cli.program import StartError, program_name, say
from Middleware.cli.running_server import find_server
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.paths import console_directory

DESCRIPTION = (
    "Prints a link that signs a browser in to the run console of the running server, as its operator. It is "
    "good once, for ten minutes."
)


def console_folder() -> ConsoleFolder:
    """Return the folder of the console of this configuration."""
    return ConsoleFolder(console_directory())


def main(words: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = build_command_parser(program_name("console"), DESCRIPTION)
    parser.add_argument("--open", action="store_true", help="open the console in this computer's browser")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the server's address for the link, such as http://192.168.1.5:5000, if the browser is on another device",
    )
    parser.add_argument("--revoke", action="store_true", help="sign every operator out, in all browsers")
    arguments, options = parse_command_arguments(parser, words)
    apply_arguments(arguments)
    if options.url is not None and not options.url.startswith(("http://", "https://")):
        parser.error("--url takes an address such as http://192.168.1.5:5000")
    try:
        return _revoke() if options.revoke else _print_link(options.url, arguments.users, options.open)
    except OSError as error:
        say(
            f"ERROR: The console's folder {console_folder().path} cannot be used: {error.strerror or error}. Run this "
            "as the account that runs the server, or name the folder with --ConsoleDirectory.",
            error_stream=True,
        )
        return 1
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1


def _operators() -> SessionTable:
    """Return the operators' sessions in the console's folder."""
    from Middleware.addons.records.store.store_files import INDEX_FILE, open_index

    path = console_folder().file(INDEX_FILE)
    return SessionTable(lambda: closing(open_index(path)))


def _revoke() -> int:
    ended = _operators().end_all()
    say(f"Operator sessions ended: {ended}. Keys that open the console are taken away in the list of accepted keys.")
    return 0


def _print_link(url: str | None, users: Sequence[str], opens: bool) -> int:
    """Print the link; raise StartError if no server is running."""
    server = find_server(users)
    if server is None:
        raise StartError(
            "No server of this configuration is running, so a link would lead nowhere. Start one with "
            f"{own_command()}; if one runs, give this command its flags too."
        )
    link = sign_in_link(url or server.url, console_folder())
    say(link)
    if opens:
        # Imported here: it looks for the system's browsers.
        import webbrowser

        webbrowser.open(link)
    return 0
