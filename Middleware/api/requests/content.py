"""Read the content of a message, in the words of any client's dialect, and move images to where back-ends take them.

A part or block means the same on every route, whichever API it comes from. What cannot be passed on is refused: an
answer to the rest would look as if nothing had been attached.

Sources: the API references of OpenAI (chat completions, Responses), Anthropic and Ollama, the Model Context Protocol,
and the types of the AI SDK.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote_to_bytes

from Middleware.exceptions import ClientError
from Middleware.llmapis.handlers.base.image_sources import image_url
from Middleware.llmapis.keepsakes import of_blocks
from Middleware.models.messages import Message, ToolCall, without_images

Fields = Mapping[str, object]

# The member with the text, by the type of the part.
TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text"), "text"),
    "refusal": "refusal",
}
IMAGES = frozenset(("image", "image_url", "input_image", "computer_screenshot"))
# The last is that of MCP.
FILES = frozenset(("file", "input_file", "document", "resource"))
# No back-end's dialect has them here.
REFUSED = frozenset(("audio", "input_audio", "video", "input_video", "video_url"))
# Of the model: they are kept as they are, since some back-ends demand them back.
THOUGHTS = frozenset(("thinking", "redacted_thinking"))
# The same as other programs call it, of which no back-end knows the form.
_OTHER_THOUGHTS = frozenset(("reasoning", "reasoning_content", "reasoning_text"))
# Where clients put an image, in the order in which they are looked at; the AI SDK uses "image", MCP "data".
_IMAGE_MEMBERS = ("image_url", "source", "image", "data", "url")
_FILE_MEMBERS = ("file", "source", "resource")
_DATA_MEMBERS = ("file_data", "data", "text")
_MEDIA_MEMBERS = ("mediaType", "mimeType", "mime_type", "media_type", "format")
# A part of an unknown type with one of these has something for the model, and so has one with a member of its own name.
_PAYLOADS = ("text", "source", "url", "image_url", "file_data", "audio", "data")
# What Anthropic's servers do by themselves: nothing for another model.
_HOSTED = re.compile(r"compaction|container_upload|\w+_tool_(use|result)")
_TEXT_FILE = re.compile(r"text/.+|application/(x-)?(json|xml|yaml)")
_ADDRESS = re.compile(r"(data:|https?://)", re.IGNORECASE)
_ANY_ADDRESS = re.compile(r"data:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SYSTEMS = ("system", "systemMes")
# A PDF without binary data begins like a text.
_PDF = "%PDF-"
# A tool's own text usually says that it failed. This far into it, the word is looked for.
ERROR_WITHIN = 40
# A role, a type or a MIME type.
_WORD = re.compile(r"[\w./+-]{1,60}")
_INDEX = re.compile(r"\[(\d+)\]")


@dataclass
class Content:
    """What is in the content of a message.

    Attributes:
        images: those of tool results too, in the order of the content.
        calls: in OpenAI's form.
        results: messages of the role ``tool``.
        thoughts: blocks of the model's reasoning, as the client has sent them.
        loaded: the names of the tools that a tool search of the client has found.
    """

    texts: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)
    thoughts: list[Fields] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def messages(self, role: str) -> list[Message]:
        """Return the results, as back-ends require them directly behind the calls, and the message of ``role``.

        Without anything else in it, there are only the results.
        """
        if self.results and not self.text and not self.calls:
            if self.images:
                self.results[-1]["images"] = self.images
            return self.results
        message: Message = {"role": role, "content": self.text}
        if self.images:
            message["images"] = self.images
        if self.calls:
            message["tool_calls"] = self.calls
        if self.thoughts and role == "assistant":
            message["extra"] = of_blocks(self.thoughts)
        return [*self.results, message]


@dataclass(frozen=True, kw_only=True)
class ContentReader:
    """Reads contents for one dialect.

    Attributes:
        dotted: its errors name positions as ``messages.3.content.1``. Refusals write all positions with brackets.
        param: its errors have the position in ``param``, too.
        lenient: blocks of unknown types are passed over unless there is something for the model in them.
        numbers: a number or a truth value counts as its text.
    """

    dotted: bool = False
    param: bool = False
    lenient: bool = False
    numbers: bool = False

    def read(self, content: object, path: str, role: str) -> Content:
        """Return what is in a content: a text, a list of parts, or null.

        Args:
            path: its JSON path in the request, with brackets.
            role: that of the message; blocks of calls and results belong to some roles only.

        Raises:
            ClientError: something in it is wrong, or cannot be passed on; the message begins with the path of it.
        """
        # By far the most contents are of this form.
        if isinstance(content, str):
            return Content([content])
        found = Content()
        for place, part in self._parts(content, path):
            self.add(found, part, place, role)
        return found

    def _parts(self, content: object, path: str) -> Iterator[tuple[str, Fields]]:
        if content is None:
            return
        if self.numbers and isinstance(content, int | float):
            yield path, {"type": "text", "text": str(content)}
            return
        if not isinstance(content, list):
            raise self._error(path, f"expected a text or a list of blocks, found {kind_of(content)}.")
        for number, part in enumerate(content):
            place = f"{path}[{number}]"
            if isinstance(part, str):
                yield place, {"type": "text", "text": part}
            elif isinstance(part, dict):
                yield place, part
            else:
                raise self._error(place, f"expected an object, found {kind_of(part)}.")

    def add(self, found: Content, part: Fields, path: str, role: str) -> None:
        """Add one part to what was found before it; see ``read``."""
        kind = part.get("type")
        kind = kind if isinstance(kind, str) else ""
        if kind in TEXTS:
            found.texts.append(self._own_text(part, TEXTS[kind], path))
        elif kind in IMAGES:
            found.images.append(self._image(part, path))
        elif kind in FILES:
            self._add_file(found, part, path)
        elif kind in THOUGHTS:
            found.thoughts.append(part)
        elif kind == "tool_use":
            self._require(role, ("assistant",), path)
            found.calls.append(self._call(part, path))
        elif kind == "tool_result":
            self._require(role, ("user", "tool"), path)
            self._add_result(found, part, path)
        elif kind == "tool_reference":
            found.loaded.append(self.name(part, "tool_name", path))
            found.texts.append(f"The tool {found.loaded[-1]} is loaded and can be called now.")
        elif kind == "search_result":
            lines = [self._text(part, "title", path), self._text(part, "source", path)]
            inner = self.read(part.get("content"), f"{path}.content", "")
            found.texts.append("\n".join(line for line in (*lines, *inner.texts) if line))
            found.images += inner.images
        elif kind not in _OTHER_THOUGHTS and (
            not self.lenient or kind in REFUSED or (not _HOSTED.fullmatch(kind) and holds_data(part))
        ):
            raise self.refusal(part, path)

    def _require(self, role: str, roles: Sequence[str], path: str) -> None:
        if role not in roles:
            raise self._error(
                path, f"such a block belongs into a message of the role {alternatives(roles)}, not {shown(role)}."
            )

    def _own_text(self, part: Fields, key: str, path: str) -> str:
        if key not in part:
            raise self.refusal(part, path, f": it has no '{key}'")
        if self.numbers and isinstance(part[key], int | float):
            return str(part[key])
        return self._text(part, key, path)

    # -- images and files ----------------------------------------------------------------------------------------
    def _image(self, part: Fields, path: str) -> str:
        """Return an image as a data URL, or as the address that the client has sent."""
        for member in _IMAGE_MEMBERS:
            if found := _image_in(part.get(member), _media(part), member):
                return found
        kept = any(isinstance(value, Mapping) and value.get("file_id") for value in (part, part.get("source")))
        hint = "WilmerAI keeps no files, send the image itself as a data URL" if kept else "it has no image"
        raise self.refusal(part, path, f": {hint}")

    def _add_file(self, found: Content, part: Fields, path: str) -> None:
        nested = next((value for key in _FILE_MEMBERS if isinstance(value := part.get(key), Mapping)), part)
        names = (fields.get(key) for fields in (part, nested) for key in ("title", "filename", "name"))
        title = next((name for name in names if isinstance(name, str) and name and part["type"] != "resource"), "")
        if nested is not part and nested.get("type") == "content":
            inner = self.read(nested.get("content"), f"{path}.source.content", "")
            texts, images = inner.texts, inner.images
        else:
            media = _media(nested) or _media(part)
            text = _file_text(nested, media)
            if text is None:
                hint = ": only texts, JSON, XML and YAML that are in the request can be read"
                raise self.refusal(part, path, f"{hint}, not {shown(media)}" if media else hint, "unsupported_file")
            texts, images = [text], []
        found.texts.append("\n".join([f"[{title}]", *texts] if title else texts))
        found.images += images

    # -- calls and results ---------------------------------------------------------------------------------------
    def _call(self, block: Fields, path: str) -> ToolCall:
        given = block.get("input")
        try:
            arguments = json.dumps({} if given is None else given, ensure_ascii=False)
        except RecursionError:
            raise self._error(f"{path}.input", "nested too deeply.") from None
        return {
            "id": self.name(block, "id", path),
            "type": "function",
            "function": {"name": self.name(block, "name", path), "arguments": arguments},
        }

    def _add_result(self, found: Content, block: Fields, path: str) -> None:
        inner = self.read(block.get("content"), f"{path}.content", "")
        text = inner.text
        if block.get("is_error") is True and "error" not in text[:ERROR_WITHIN].lower():
            text = f"Error: {text}"
        call_id = self.name(block, "tool_use_id", path)
        found.results.append({"role": "tool", "content": text, "tool_call_id": call_id})
        found.images += inner.images
        found.loaded += inner.loaded

    # -- texts and errors ----------------------------------------------------------------------------------------
    def _text(self, fields: Fields, key: str, path: str) -> str:
        """Return a text of a block; "" for null or none."""
        value = fields.get(key)
        if value is not None and not isinstance(value, str):
            raise self._error(f"{path}.{key}", f"expected a text, found {kind_of(value)}.")
        return value or ""

    def name(self, fields: Fields, key: str, path: str) -> str:
        """Return a text that must be there."""
        if not (name := self._text(fields, key, path)):
            raise self._error(f"{path}.{key}", "expected a text that is not empty.")
        return name

    def _error(self, path: str, text: str, code: str | None = None) -> ClientError:
        written = _INDEX.sub(r".\1", path) if self.dotted else path
        return ClientError(f"{written}: {text}", param=path if self.param else None, code=code)

    def refusal(self, part: Fields, path: str, hint: str = "", code: str | None = None) -> ClientError:
        """Return the error for a part that the LLM could not be shown."""
        kind = part.get("type")
        named = f"'{kind}'" if isinstance(kind, str) and _WORD.fullmatch(kind) else "a part without a known type"
        text = f"{path}: {named} cannot be passed on{hint}"
        return ClientError(text, param=path if self.param else None, code=code if self.param else None)


def images_in(value: object, path: str) -> list[str]:
    """Return the images in the field of that name, as Ollama's clients send them: a list of base64 texts, or null."""
    if not value:
        return []
    if not isinstance(value, list):
        raise ClientError(f"{path}: expected a list of texts in base64, found {kind_of(value)}.")
    for number, image in enumerate(value):
        if image and not isinstance(image, str):
            raise ClientError(f"{path}[{number}]: expected a text in base64, found {kind_of(image)}.")
    return [image for image in value if image]


def carries(part: Fields) -> bool:
    """Return whether there is something for the model in a part of an unknown type, by the names of its members."""
    kind = part.get("type")
    members = (*_PAYLOADS, kind) if isinstance(kind, str) else _PAYLOADS
    return any(part.get(member) for member in members)


def holds_data(part: Fields) -> bool:
    """Return the same, also by the values of its members: an address, a data URL, or an object with such a member."""
    return carries(part) or any(
        _ANY_ADDRESS.match(value) if isinstance(value, str) else isinstance(value, Mapping) and carries(value)
        for value in part.values()
    )


# -- where images go ---------------------------------------------------------------------------------------------------
def with_images_moved(messages: Sequence[Message], text: str = "") -> list[Message]:
    """Return the messages with all images in messages of the user: back-ends take them nowhere else.

    Those of other messages go into a message of their own, or to the user's message that follows directly: back-ends
    demand the results of all calls directly behind these. Those of a system prompt go to the first user message.

    Args:
        text: the content of added messages.
    """
    out: list[Message] = []
    held: list[str] = []
    # Whether only system messages came so far, and whether images belong directly behind the message before.
    opening, due = True, False
    for message in messages:
        role = message["role"]
        if role == "user":
            if held:
                message = {**message, "images": [*held, *message.get("images", ())]}
            held, due = [], False
        elif due and role != "tool":
            out.append({"role": "user", "content": text, "images": held})
            held, due = [], False
        opening = opening and role in _SYSTEMS
        if role != "user" and (images := message.get("images")):
            held += images
            due = due or not opening
            message = without_images(message)
        out.append(message)
    if held:
        place = next((at for at, message in enumerate(out) if not due and message["role"] not in _SYSTEMS), len(out))
        out.insert(place, {"role": "user", "content": text, "images": held})
    return out


def has_stray_images(messages: Sequence[Message]) -> bool:
    """Return whether ``with_images_moved`` has something to move."""
    # A generator would cost a call for each of thousands of messages.
    return bool([message for message in messages if "images" in message and message["role"] != "user"])


# -- the data of images and files --------------------------------------------------------------------------------------
def _media(fields: Fields) -> str:
    """Return the MIME type that a part names, without parameters; "" for none."""
    given = next((value for key in _MEDIA_MEMBERS if isinstance(value := fields.get(key), str)), "")
    return given.partition(";")[0].strip().lower()


def _image_in(value: object, media: str, member: str) -> str:
    if isinstance(value, Mapping):
        if isinstance(data := value.get("data"), str) and data and not _ADDRESS.match(data):
            return f"data:{_media(value) or media or 'image/png'};base64,{data}"
        return next((found for key in ("url", "data") if (found := _image_in(value.get(key), media, "url"))), "")
    if not isinstance(value, str) or not value.strip():
        return ""
    if member not in ("image", "data") or _ADDRESS.match(value):
        return value
    # Base64 that the client gives no type for may show its own.
    return (not media and image_url(value)) or f"data:{media or 'image/png'};base64,{value}"


def _file_text(fields: Fields, media: str) -> str | None:
    """Return the text of a file; None if the request does not have it, or if it is not a text."""
    member = next((key for key in _DATA_MEMBERS if isinstance(fields.get(key), str)), "")
    data = cast(str, fields.get(member, ""))
    if member == "text" or (member and fields.get("type") == "text"):
        return data
    if not member or (media and not _TEXT_FILE.fullmatch(media)):
        return None
    head, comma, encoded = data.partition(",")
    if head[:5].lower() != "data:":
        return _decoded(data, media)
    own, _, options = head[5:].partition(";")
    media = own.strip().lower() or media
    if not comma or (media and not _TEXT_FILE.fullmatch(media)):
        return None
    if not options.lower().endswith("base64"):
        return unquote_to_bytes(encoded).decode("utf-8", "replace")
    return _decoded(encoded, media, is_base64=True)


def _decoded(data: str, media: str, is_base64: bool = False) -> str | None:
    """Return the text in base64, which some clients leave out where a file is a text anyway."""
    try:
        raw = base64.b64decode(data, validate=not is_base64)
    # The error for wrong padding is a ValueError; so is that for characters beyond ASCII.
    except ValueError:
        return None if is_base64 or "\0" in data else data
    if media:
        return raw.decode("utf-8", "replace")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or text.startswith(_PDF) else text


# -- words of errors ---------------------------------------------------------------------------------------------------
def alternatives(names: Sequence[str]) -> str:
    """Return quoted names as a choice."""
    listed = [f"'{name}'" for name in names]
    return " or ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else listed[0]


def shown(value: object) -> str:
    """Return a word from the request for an error. Anything else than a word could be a text of the conversation."""
    return f"'{value}'" if isinstance(value, str) and _WORD.fullmatch(value) else kind_of(value)


def kind_of(value: object) -> str:
    """Return what kind of JSON value the request has, without any text of the conversation."""
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    return "nothing" if value is None else kinds.get(type(value), "an object")
