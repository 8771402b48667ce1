"""The options of curl that a node may use, how curl reads its arguments, and what variables must not make of them.

This is an allow-list: whether an option takes a value decides which of the other arguments are URLs, so an option that
is not known here could hide a URL from the address guard. ``docs/options.d`` of curl's source describes each.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from Middleware.utilities.http.addresses import check_proxy, check_url
from Middleware.utilities.sensitive_logging_utils import MASK, mask_data, mask_url
from Middleware.utilities.templates.substitution import without_marks
from Middleware.utilities.text_utils import nearest

URL = "url"

_FLAGS = frozenset(
    """
anyauth append basic compressed create-dirs digest disable fail fail-early fail-with-body ftp-create-dirs ftp-pasv get
globoff head http1.0 http1.1 http2 include insecure ipv4 ipv6 junk-session-cookies list-only location location-trusted
negotiate netrc next no-buffer no-keepalive no-progress-meter ntlm parallel path-as-is post301 post302 post303
progress-bar proxy-anyauth proxy-basic proxy-digest raw remote-header-name remote-name remote-name-all remote-time
retry-all-errors retry-connrefused show-error silent ssl ssl-reqd tlsv1.2 tlsv1.3 tr-encoding verbose
""".split()
)

_WITH_VALUE = frozenset(
    """
aws-sigv4 cacert capath cert cert-type connect-timeout connect-to continue-at cookie cookie-jar data data-ascii
data-binary data-raw data-urlencode dump-header form form-string header interface json keepalive-time key key-type
limit-rate mail-from mail-rcpt max-filesize max-redirs max-time netrc-file noproxy oauth2-bearer output output-dir pass
proto proto-redir proxy proxy-cacert proxy-header proxy-user quote range referer request request-target resolve retry
retry-delay retry-max-time speed-limit speed-time time-cond unix-socket upload-file url url-query user user-agent
write-out
""".split()
)

_LETTERS = dict(
    pair.split("=")
    for pair in """
#=progress-bar 0=http1.0 4=ipv4 6=ipv6 :=next A=user-agent C=continue-at D=dump-header E=cert F=form G=get H=header
I=head J=remote-header-name L=location N=no-buffer O=remote-name Q=quote R=remote-time S=show-error T=upload-file
U=proxy-user X=request Y=speed-limit Z=parallel a=append b=cookie c=cookie-jar d=data e=referer f=fail g=globoff
i=include j=junk-session-cookies k=insecure l=list-only m=max-time n=netrc o=output q=disable r=range s=silent u=user
v=verbose w=write-out x=proxy y=speed-time z=time-cond
""".split()
)

# What a variable may bring: options that change how the answer is read or printed, and limits of the time.
_READING = frozenset("compressed fail get head include show-error silent".split())
_TIME_LIMITS = frozenset(("connect-timeout", "max-time"))
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

# Options whose value leads a request to another address than that of its URL.
_ROUTES = frozenset(("connect-to", "resolve", "unix-socket"))

# Options whose value is either data or, marked as such, the name of a file with the data.
_DATA_OR_FILE = frozenset(
    "cookie data data-ascii data-binary data-urlencode form header json proxy-header url-query".split()
)

# Options whose value curl writes into the head of a request as it is, line breaks included.
_IN_THE_HEAD = frozenset(
    "aws-sigv4 cookie header oauth2-bearer proxy-header range referer request request-target user-agent".split()
)

# Options whose value is or may hold a password or a key.
_SECRET = frozenset(
    ("aws-sigv4", "cert", "cookie", "header", "oauth2-bearer", "pass", "proxy", "proxy-header", "proxy-user", "user")
)

# The name of a user is encoded in the head of a request, unless one of these options is given.
_USERS = frozenset(("proxy-user", "user"))
_PLAIN_USERS = frozenset(("anyauth", "aws-sigv4", "digest", "proxy-anyauth", "proxy-digest"))


@dataclass(frozen=True)
class Argument:
    """An option, or a URL (``name`` is then ``URL``).

    Attributes:
        name: long name; as written if the option is not allowed.
        index: where the argument starts.
        value, value_index: the value and the argument that contains it; None for options without one.
        positional: a URL without an option.
    """

    name: str
    index: int
    value: str | None = None
    value_index: int | None = None
    positional: bool = False

    @property
    def allowed(self) -> bool:
        return self.name in _FLAGS or self.name in _WITH_VALUE


def read_arguments(args: Sequence[str]) -> Iterator[Argument]:
    """Yield the arguments as curl reads them. An option that is not allowed counts as one without a value."""
    index, options_end = 0, False
    while index < len(args):
        item = args[index]
        if options_end or not item.startswith("-") or item == "-":
            yield Argument(URL, index, item, index, positional=True)
        elif item == "--":
            options_end = True
        else:
            for argument in _read_option(args, index):
                yield argument
                index = argument.value_index or index
        index += 1


def _read_option(args: Sequence[str], index: int) -> Iterator[Argument]:
    """Yield the options of one item: a long one, or several letters of which the last may take a value."""
    item = args[index]
    if item.startswith("--"):
        name, separator, value = item[2:].partition("=")
        if separator:
            yield Argument(name, index, value, index)
        else:
            yield _with_next(args, index, name)
        return
    for position, letter in enumerate(item[1:], 2):
        name = _LETTERS.get(letter, letter)
        if name in _WITH_VALUE:
            rest = item[position:]
            yield Argument(name, index, rest, index) if rest else _with_next(args, index, name)
            return
        yield Argument(name, index)


def _with_next(args: Sequence[str], index: int, name: str) -> Argument:
    if name in _WITH_VALUE and index + 1 < len(args):
        return Argument(name, index, args[index + 1], index + 1)
    return Argument(name, index)


def refusal(name: str) -> str:
    """Return the reason why an option that the author wrote is refused."""
    near = nearest(name, sorted(_FLAGS | _WITH_VALUE)) if len(name) > 1 else ""
    hint = f" (the nearest allowed one is '--{near}')" if near else ""
    return f"curl's option '{'--' if len(name) > 1 else '-'}{name}' is not allowed in a node{hint}"


def forbidden_effect(argument: Argument) -> str:
    """Return what the argument's value does to files, empty if nothing.

    With an option for data from a file, its author decided that the value may name one.
    """
    value = argument.value or ""
    if argument.name == URL and not argument.positional and value.startswith("@"):
        return "make curl read URLs from a file"
    if argument.name == "write-out" and "%output{" in value:
        return "make curl write a file"
    return ""


def without_last_breaks(args: Sequence[str]) -> list[str]:
    """Remove line breaks at the end of values that go into the head of a request: models end texts with one."""
    last = {argument.value_index for argument in read_arguments(args) if argument.name in _IN_THE_HEAD}
    return [item.rstrip("\r\n") if index in last else item for index, item in enumerate(args)]


def with_encoded_urls(marked: Sequence[str]) -> list[str]:
    """Return arguments whose values stand between marks without these, and values in URLs encoded."""
    # Imported here: the checks at the start read the options of curl, and an idle server does without the rest.
    from Middleware.workflows.tools.web.url_values import with_encoded_values

    filled = [without_marks(item) for item in marked]
    for argument in list(read_arguments(filled)):
        if argument.name != URL or argument.value_index is None:
            continue
        item = marked[argument.value_index]
        follows_option = argument.value_index == argument.index and not argument.positional
        option, equals, url = item.partition("=") if follows_option else ("", "", item)
        filled[argument.value_index] = without_marks(option) + equals + with_encoded_values(url)
    return filled


def adds_header_line(argument: Argument, template: str, options: Collection[str]) -> bool:
    """Return whether the argument's value adds lines to the head of a request that its ``template`` does not have.

    ``options``: the names of all options of the command.
    """
    in_head = argument.name in _IN_THE_HEAD or (argument.name in _USERS and not _PLAIN_USERS.isdisjoint(options))
    return in_head and _breaks(argument.value or "") > _breaks(template)


def _breaks(text: str) -> int:
    return text.count("\n") + text.count("\r")


def may_name_file(option: str, before: str, after: str) -> bool:
    """Return whether a text between the two parts of an option's value can make it the name of a file with data.

    False if the parts alone name one, as their author then meant that.
    """
    brought = "x=@x" if option == "form" and "=" not in before else "@x"
    return (
        option in _DATA_OR_FILE
        and not _names_file(option, before + after)
        and _names_file(option, f"{before}{brought}{after}")
    )


def _names_file(option: str, value: str) -> bool:
    if option == "form":
        return "=@" in value or "=<" in value
    if option == "cookie":
        return bool(value) and "=" not in value
    if option in ("data-urlencode", "url-query"):
        return "@" in value.partition("=")[0]
    return value.startswith("@")


# -- what variables bring ----------------------------------------------------------------------------------------------

# A URL whose scheme is http, or that is a host without a scheme. With braces, brackets or backslashes before the scheme
# is settled, curl would build others of it: ``{file,http}:`` and ``fil[e-e]:`` are ``file:``.
_HTTP_OR_HOST = re.compile(
    r"[hH][tT]{2}[pP][sS]?:|[a-zA-Z]:|"
    r"(?:\[[0-9a-fA-F:.]+]|[^:/?#{}\[\]\\]*)(?::\d{1,5})?(?:[/?#]|$)"
)
_GLOBS = str.maketrans("", "", "{}[]\\")

# Hosts without a scheme for which curl chooses another protocol than HTTP.
_GUESSED = re.compile(r"(?:[^/?#]*@)?(?:ftp|dict|ldap|imap|smtp|pop3)\.", re.IGNORECASE)

_SCHEME = re.compile(r"(?!https?:)([a-zA-Z][a-zA-Z0-9+.-]+):/", re.IGNORECASE)

# Characters that curl skips, and those that a curl on Windows may get as ASCII ones, from an old code page.
_NO_SPACE = dict.fromkeys((*range(0x21), 0x7F))
_LOOK_ALIKES = str.maketrans(
    {"\u2236": ":", "\ua789": ":", "\u2215": "/", "\u2044": "/", "\u29f8": "/", "\u2216": "\\", "\u29f5": "\\"}
)


def inserts_scheme_into_url(template: str, url: str) -> bool:
    """Return whether variables bring a scheme other than http to an item that curl takes as a URL."""
    literal = template.partition("{")[0]
    # What the author wrote up to a colon or slash is settled.
    if url == template or ":" in literal or "/" in literal:
        return False
    own = literal.translate(_GLOBS) + url.removeprefix(literal)
    forms = (own.translate(_NO_SPACE), unicodedata.normalize("NFKC", own.translate(_LOOK_ALIKES)).translate(_NO_SPACE))
    return any(
        not _HTTP_OR_HOST.match(form) or (_GUESSED.match(unquote(form)) and not _GUESSED.match(literal))
        for form in forms
    )


def inserts_scheme_into_data(template: str, item: str) -> bool:
    """Return whether variables bring a scheme to any other item. ``Note: ...`` is data, so ``scheme:/`` counts only."""
    found = _SCHEME.match(item)
    return found is not None and not template.startswith(f"{found[1]}:")


def injection_problem(
    raw: Sequence[str], filled: Sequence[str], block_options: bool, allow_schemes: bool
) -> str | None:
    """Return why the arguments are refused, None if they are not. Quotes no values.

    Refused are options that are not allowed, and what the filled-in items do that their templates ``raw`` do not.
    """
    arguments = list(read_arguments(filled))
    urls = {argument.value_index: argument.value or "" for argument in arguments if argument.name == URL}
    read = {index for argument in arguments for index in (argument.index, argument.value_index)}
    for index, (template, item) in enumerate(zip(raw, filled, strict=True)):
        if block_options and item[:1] in ("-", "@") and template[:1] != item[:1]:
            return f"args[{index}]: a filled-in value must not start with '{item[0]}' (blockOptionInjection)"
        # Every item belongs to an argument, except the one that ends the options.
        if index not in read and template != item:
            return f"args[{index}]: a filled-in value must not end the options"
        if not allow_schemes and _inserts_scheme(template, item, urls.get(index)):
            return (
                f"args[{index}]: a filled-in value must not bring a URL scheme other than http or https "
                "(allowSchemeInjection)"
            )
    options = {argument.name for argument in arguments}
    found = (_violation(raw, argument, options, block_options) for argument in arguments)
    return next(filter(None, found), None)


def address_problem(args: Sequence[str], block_private: bool, allowed_hosts: Sequence[str] | None) -> str | None:
    """Return why the address guard refuses a URL, None if it does not. Resolves names, so it may block."""
    for argument in read_arguments(args):
        if argument.name == URL and argument.value is not None:
            url = argument.value if "://" in argument.value else f"http://{argument.value}"
            reason = check_url(url, block_private, allowed_hosts).reason
            if reason:
                return reason
    return None


def route_problem(
    args: Sequence[str], authored: Sequence[str], block_private: bool, allowed_hosts: Sequence[str] | None
) -> str | None:
    """Return why the address guard refuses a way to a server that a text brings, None if it does not.

    The ways that the author or the configuration chose are not judged. May block, as ``address_problem``.

    Args:
        authored: the arguments with a stand-in for what users, models and tools wrote.
    """
    for argument in read_arguments(args):
        if argument.value is None or argument.name not in (*_ROUTES, "proxy"):
            continue
        own = _value_in(authored, argument)
        if argument.name == "proxy":
            reason = check_proxy(argument.value, own, block_private, allowed_hosts).reason
            if reason:
                return reason
        elif argument.value != own:
            return f"a filled-in value in '--{argument.name}' leads to another address than that of the URL"
    return None


def without_secrets(args: Sequence[str]) -> list[str]:
    """Return the arguments as a log may show them: of headers their names, of URLs and data no secret parameters."""
    shown = list(args)
    for argument in read_arguments(args):
        if argument.value is None or argument.value_index is None:
            continue
        item = shown[argument.value_index]
        shown[argument.value_index] = item[: len(item) - len(argument.value)] + _without_secret(argument)
    return shown


def _without_secret(argument: Argument) -> str:
    value = argument.value or ""
    if argument.name in _SECRET:
        name, colon, _ = value.partition(":")
        return f"{name}: {MASK}" if colon and argument.name in ("header", "proxy-header") else MASK
    if argument.name not in (URL, "referer"):
        return mask_data(value)
    return mask_url(value) if "://" in value else mask_url(f"//{value}").removeprefix("//")


def has_option(args: Sequence[str], name: str) -> bool:
    return any(argument.name == name for argument in read_arguments(args))


def names_option(template: str, name: str) -> bool:
    """Return whether the author wrote the option: only what precedes the first placeholder is surely the author's."""
    literal = template.partition("{")[0]
    return any(argument.name == name for argument in read_arguments([literal]) if not argument.positional)


def _inserts_scheme(template: str, item: str, url: str | None) -> bool:
    if url is None:
        return inserts_scheme_into_data(template, item)
    # Such as --url=, before a URL in the same item.
    option = item.removesuffix(url)
    return inserts_scheme_into_url(template.removeprefix(option), url)


def _violation(raw: Sequence[str], argument: Argument, options: Collection[str], block_options: bool) -> str | None:
    """Return what is forbidden about an argument, None if nothing. An author may do more than a variable."""
    ours = argument.positional or names_option(raw[argument.index], argument.name)
    if not argument.allowed:
        # The name of an option that a variable brings may be part of a conversation.
        return f"args[{argument.index}]: " + (
            refusal(argument.name) if ours else "a filled-in value must not bring an option that is not allowed"
        )
    if not ours and (block_options or not _may_be_brought(argument)):
        key = " (blockOptionInjection)" if block_options else ""
        return f"args[{argument.index}]: a filled-in value must not bring the option '{argument.name}'{key}"
    if _swallows_next(raw, argument):
        return f"args[{argument.index}]: a filled-in value must not be empty behind the option '{argument.name}'"
    if argument.value is None or argument.value_index is None:
        return None
    template = _value_in(raw, argument)
    effect = forbidden_effect(argument)
    if adds_header_line(argument, template, options):
        effect = "bring a line break into the head of the request"
    elif not effect or forbidden_effect(replace(argument, value=template)):
        return None
    return f"args[{argument.value_index}]: a filled-in value must not {effect}"


def _may_be_brought(argument: Argument) -> bool:
    if argument.name in _TIME_LIMITS:
        # A limit without its number would take the next argument of the author for it.
        return _SECONDS.fullmatch(argument.value or "") is not None
    return argument.name in _READING


def _swallows_next(raw: Sequence[str], argument: Argument) -> bool:
    """Return whether an option takes the next item as its value because a variable gave it none."""
    takes = argument.name in _WITH_VALUE and not argument.positional and argument.value_index != argument.index
    return takes and "{" in raw[argument.index] and names_option(raw[argument.index], argument.name)


def _value_in(raw: Sequence[str], argument: Argument) -> str:
    """Return the template of an argument's value: what follows an option in the same item, or all of an item."""
    template = raw[argument.value_index or 0]
    if argument.value_index != argument.index:
        return template
    found = next((own.value for own in read_arguments([template]) if own.name == argument.name), None)
    return "" if found is None else found
