"""How curl reads its arguments: which are options, which are values of options, which are URLs."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

URL = "url"

_LETTERS = {"o": "output", "O": "remote-name", "J": "remote-header-name", "K": "config", "T": "upload-file",
            "x": "proxy", "D": "dump-header", "c": "cookie-jar", "w": "write-out", "E": "cert", "d": "data",
            "F": "form", "H": "header", "b": "cookie"}
_LETTERS_WITH_VALUE = frozenset("ACDEFHKPQTUXYbcdehmortuwxyz")
_WITH_VALUE = frozenset("""
abstract-unix-socket alt-svc aws-sigv4 cacert capath cert cert-type ciphers config connect-timeout connect-to
continue-at cookie cookie-jar create-file-mode crlfile curves data data-ascii data-binary data-raw data-urlencode
delegation dns-interface dns-ipv4-addr dns-ipv6-addr dns-servers doh-url dump-header ech egd-file engine etag-compare
etag-save expect100-timeout form form-string ftp-account ftp-alternative-to-user ftp-method ftp-port ftp-ssl-ccc-mode
happy-eyeballs-timeout-ms haproxy-clientip header help hostpubmd5 hostpubsha256 hsts interface ip-tos ipfs-gateway json
keepalive-cnt keepalive-time key key-type knownhosts krb libcurl limit-rate local-port login-options mail-auth mail-from
mail-rcpt max-filesize max-redirs max-time netrc-file noproxy oauth2-bearer output output-dir parallel-max
parallel-max-host pass pinnedpubkey preproxy proto proto-default proto-redir proxy proxy-cacert proxy-capath proxy-cert
proxy-cert-type proxy-ciphers proxy-crlfile proxy-header proxy-key proxy-key-type proxy-pass proxy-pinnedpubkey
proxy-service-name proxy-tls13-ciphers proxy-tlsauthtype proxy-tlspassword proxy-tlsuser proxy-user proxy1.0 pubkey
quote random-file range rate referer request request-target resolve retry retry-delay retry-max-time sasl-authzid
service-name sigalgs socks4 socks4a socks5 socks5-gssapi-service socks5-hostname speed-limit speed-time ssl-sessions
stderr telnet-option tftp-blksize time-cond tls-max tls13-ciphers tlsauthtype tlspassword tlsuser trace trace-ascii
trace-config unix-socket upload-file upload-flags url url-query user user-agent variable vlan-priority write-out
""".split())
"""Long options that take a value, of curl up to 8.15. An option missing here makes its value count as a URL."""

_TOUCH_FILES_OR_PROTOCOLS = frozenset("""
abstract-unix-socket alt-svc cacert capath cert config cookie-jar crlfile dump-header egd-file engine etag-compare
etag-save hsts key knownhosts libcurl netrc-file output output-dir proto proto-default proto-redir proxy-cacert
proxy-capath proxy-cert proxy-crlfile proxy-key pubkey random-file remote-header-name remote-name remote-name-all
ssl-sessions stderr trace trace-ascii unix-socket upload-file variable write-out
""".split())

_DATA_OR_FILE = frozenset((
    "cookie", "data", "data-ascii", "data-binary", "data-urlencode", "form", "header", "json", "proxy-header",
    "url-query"))
"""Options whose value is either data or, marked as such, the name of a file with the data."""

_IN_THE_HEAD = frozenset((
    "A", "X", "aws-sigv4", "cookie", "e", "haproxy-clientip", "header", "oauth2-bearer", "proxy-header", "r", "range",
    "referer", "request", "request-target", "user-agent"))
"""Options whose value curl writes into the head of a request as it is, line breaks included."""

_USERS = frozenset(("U", "proxy-user", "u", "user"))
_PLAIN_USERS = frozenset(("anyauth", "aws-sigv4", "digest", "proxy-anyauth", "proxy-digest"))
"""Options by which curl writes the name of a user into the head as it is; otherwise it is encoded."""

_WHOLE_NAMES = frozenset(("head", "netrc", "ssl"))
"""Options without value whose names other options begin with."""


@dataclass(frozen=True)
class Argument:
    """An option, or a URL (``name`` is then ``URL``).

    Attributes:
        name: long name, or the letter of options that have no meaning here.
        index: where the argument starts.
        value, value_index: the value and the argument it stands in; None for options without one.
        positional: a URL without an option.
    """

    name: str
    index: int
    value: str | None = None
    value_index: int | None = None
    positional: bool = False


def read_arguments(args: Sequence[str]) -> Iterator[Argument]:
    """The arguments as curl takes them. Names may be cut short, as curl allows; such count as options without value."""
    index, options_end = 0, False
    while index < len(args):
        item = args[index]
        if options_end or not item.startswith("-") or item == "-":
            yield Argument(URL, index, item, index, positional=True)
        elif item == "--":
            options_end = True
        else:
            read = list(_read_long(args, index) if item.startswith("--") else _read_letters(args, index))
            yield from read
            index = max([index, *(argument.value_index or 0 for argument in read)])
        index += 1


def touches_files_or_protocols(name: str) -> bool:
    """Whether an option makes curl open files, take more options from one, or speak other protocols.

    So does a name that is cut short, if it may mean such an option.
    """
    if name in _TOUCH_FILES_OR_PROTOCOLS:
        return True
    if len(name) < 2 or name in _WITH_VALUE or name in _WHOLE_NAMES:
        return False
    return any(known.startswith(name) for known in _TOUCH_FILES_OR_PROTOCOLS | _DATA_OR_FILE)


def harm_of_value(argument: Argument, own_option: bool) -> str:
    """What the argument's value does to files and protocols, empty if nothing.

    ``own_option``: the author wrote the option, and so decided whether its value may name a file with data.
    """
    value = argument.value or ""
    if argument.name == URL and not argument.positional and value.startswith("@"):
        return "make curl read URLs from a file"
    if argument.name == "write-out" and "%output{" in value:
        return "make curl write a file"
    if argument.name == "proto-default" and "{" not in value and value.lower() not in ("http", "https"):
        return "choose a protocol other than http or https"
    if not own_option and argument.name in _DATA_OR_FILE and _names_file(argument.name, value):
        return "make curl send a file"
    return ""


def without_last_breaks(args: Sequence[str]) -> list[str]:
    """The arguments without line breaks at the end of what goes into the head of a request: models end texts so."""
    last = {argument.value_index for argument in read_arguments(args) if argument.name in _IN_THE_HEAD}
    return [item.rstrip("\r\n") if index in last else item for index, item in enumerate(args)]


def brings_break(argument: Argument, template: str, options: Collection[str]) -> bool:
    """Whether the argument's value adds lines to the head of a request that its ``template`` has not.

    ``options``: the names of all options of the command.
    """
    in_head = argument.name in _IN_THE_HEAD or (argument.name in _USERS and not _PLAIN_USERS.isdisjoint(options))
    return in_head and _breaks(argument.value or "") > _breaks(template)


def _breaks(text: str) -> int:
    return text.count("\n") + text.count("\r")


def may_name_file(option: str, before: str, after: str) -> bool:
    """Whether a text between the two parts of an option's value can make it the name of a file with data.

    False if the parts alone name one, as their author then meant that.
    """
    brought = "x=@x" if option == "form" and "=" not in before else "@x"
    return option in _DATA_OR_FILE and not _names_file(option, before + after) and _names_file(
        option, f"{before}{brought}{after}")


def _names_file(option: str, value: str) -> bool:
    if option == "form":
        return "=@" in value or "=<" in value
    if option == "cookie":
        return bool(value) and "=" not in value
    if option in ("data-urlencode", "url-query"):
        return "@" in value.partition("=")[0]
    return value.startswith("@")


def _read_long(args: Sequence[str], index: int) -> Iterator[Argument]:
    name, separator, value = args[index][2:].partition("=")
    name = name.removeprefix("expand-")
    if separator:
        is_url = bool(name) and URL.startswith(name)
        yield Argument(URL if is_url else name, index, value, index)
    elif name in _WITH_VALUE and index + 1 < len(args):
        yield Argument(name, index, args[index + 1], index + 1)
    else:
        yield Argument(name, index)


def _read_letters(args: Sequence[str], index: int) -> Iterator[Argument]:
    letters = args[index][1:]
    for position, letter in enumerate(letters):
        name = _LETTERS.get(letter, letter)
        if letter not in _LETTERS_WITH_VALUE:
            yield Argument(name, index)
            continue
        rest = letters[position + 1:]
        if rest:
            yield Argument(name, index, rest, index)
        elif index + 1 < len(args):
            yield Argument(name, index, args[index + 1], index + 1)
        else:
            yield Argument(name, index)
        return
