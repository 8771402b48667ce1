"""SillyTavern against WilmerAI in a real browser; see README.md here."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from Tests.manual.browser import ENTER, Browser
from Tests.manual.lab import COUNTED, FAILURE, MODEL, Call, Lab
from Tests.manual.program import Program, free_port
from Tests.manual.report import Report, argument_parser, program_path, stopped

ANSWER = ".last_mes .mes_text"
INPUT = "#send_textarea"
STOP = "#mes_stop"
NOTICE = ".toast-message"
MODEL_LISTS = ".model_custom_select option, #ollama_model option, #generic_model_fill option"
CHARACTER = "Seraphina"
TAGS = {
    "input_sequence": "[Beg_User]",
    "output_sequence": "[Beg_Assistant]",
    "system_sequence": "[Beg_SysMes]",
    "first_output_sequence": "[Beg_Assistant]",
    "last_output_sequence": "",
    "story_string_prefix": "[Beg_Sys]",
    "story_string_suffix": "",
    "input_suffix": "",
    "output_suffix": "",
    "system_suffix": "",
    "stop_sequence": "",
    "enabled": True,
    "wrap": False,
    "names_behavior": "always",
    "sequences_as_stop_strings": False,
    "system_same_as_user": False,
    "preset": "WilmerAI",
}
CONFIG = """\
dataRoot: "{data}"
port: {port}
listen: false
whitelistMode: true
basicAuthMode: false
disableCsrfProtection: true
browserLaunch:
  enabled: false
extensions:
  enabled: true
  autoUpdate: false
  models:
    autoDownload: false
enableDownloadableTokenizers: false
"""
CONNECTIONS = ("Chat Completion, Custom", "Text Completion, Ollama", "Text Completion, Generic")


def write_settings(install: Path, data: Path, connection: str, wilmer: str, stream: bool) -> None:
    """The settings that a user would make in the connection and formatting panels."""
    values = json.loads((install / "default" / "content" / "settings.json").read_text(encoding="utf-8"))
    values.update(firstRun=False, username="Ann")
    power = values["power_user"]
    power.update(auto_connect=True, auto_load_chat=False)
    power["instruct"].update(TAGS)
    power["context"].update(chat_start="", example_separator="", use_stop_strings=False)
    _connect(values, connection, wilmer, stream)
    file = data / "default-user" / "settings.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")


def _connect(values: dict[str, Any], connection: str, wilmer: str, stream: bool) -> None:
    if connection == CONNECTIONS[0]:
        values["main_api"] = "openai"
        values["oai_settings"].update(
            chat_completion_source="custom",
            custom_url=f"{wilmer}/v1",
            custom_model=MODEL,
            stream_openai=stream,
            media_inlining=True,
        )
        return
    kind = "ollama" if connection == CONNECTIONS[1] else "generic"
    url = wilmer if kind == "ollama" else f"{wilmer}/v1"
    values["main_api"] = "textgenerationwebui"
    values["textgenerationwebui_settings"].update(
        type=kind, server_urls={kind: url}, streaming=stream, ollama_model=f"{MODEL}:latest", generic_model=MODEL
    )


class Page:
    """SillyTavern as its user sees it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self._url = url

    def open(self) -> None:
        """Load the page, and a new chat with a character once connected."""
        self.browser.open(self._url)
        self.browser.wait(
            lambda: self.browser.run(
                "return Boolean(globalThis.SillyTavern?.getContext?.().characters.length)"
                " && !document.querySelector('#preloader')"
            ),
            "SillyTavern",
            90,
        )
        self.browser.wait(lambda: self.online() not in ("", "no_connection"), "connection", 30)
        self.browser.run(
            "const context = SillyTavern.getContext();"
            "return context.selectCharacterById(context.characters.findIndex(c => c.name === arguments[0]))"
            ".then(() => context.executeSlashCommandsWithOptions('/newchat'))",
            CHARACTER,
        )
        self.browser.wait(lambda: self.browser.count(".mes") == 1 and self.browser.text(ANSWER), "greeting")

    def online(self) -> str:
        """What the connection panel says, usually the model's name."""
        return str(self.browser.run("return SillyTavern.getContext().onlineStatus"))

    def models(self) -> list[str]:
        """The models that the connection panel lets its user choose from."""
        return [
            str(name)
            for name in self.browser.run(
                "return [...document.querySelectorAll(arguments[0])].map(e => e.value).filter(Boolean)", MODEL_LISTS
            )
        ]

    def send(self, text: str) -> None:
        """Type a message and send it."""
        self.browser.type(INPUT, text + ENTER)

    def answer(self, text: str, timeout: float = 20.0) -> float:
        """Wait for a text in the last message; seconds until then."""
        began = time.monotonic()
        while text not in (shown := self.browser.text(ANSWER)):
            notices = self.browser.texts(NOTICE)
            assert not notices and time.monotonic() - began < timeout, (
                f"'{text}' did not come; last message {shown!r}, notices {notices}"
            )
            time.sleep(0.05)
        return time.monotonic() - began

    def settle(self) -> None:
        """Wait until SillyTavern is ready for the next message."""
        self.browser.wait(lambda: not self.browser.count(STOP) and self.browser.count("#send_but"), "end of the answer")


class Checks:
    """The checks of one connection, streamed or whole."""

    def __init__(self, lab: Lab, page: Page, connection: str, stream: bool, shot: Callable[[str], None]) -> None:
        self._lab = lab
        self._page = page
        self._browser = page.browser
        self._chat = connection == CONNECTIONS[0]
        self._stream = stream
        # SillyTavern shows no error at all of an Ollama stream, and of a whole chat completion only the status
        self._silent = connection == CONNECTIONS[1] and stream
        self._terse = self._silent or (self._chat and not stream)
        self._shot = shot

    def all(self) -> Mapping[str, Callable[[], str | None]]:
        checks = {
            "connection": self.connect,
            "chat": self.chat,
            "messages at the model": self.messages,
            "stop button": self.stop,
            "message after stop": self.after_stop,
            "swipe": self.swipe,
            "regenerate": self.regenerate,
        }
        if self._chat and self._stream:
            checks["image"] = self.image
        return {**checks, "error": self.error}

    def connect(self) -> str:
        self._page.open()
        self._shot("connected")
        listed = sorted(set(self._page.models()))
        assert MODEL in listed, f"listed: {listed}"
        return f"status {self._page.online()!r}; listed: {listed}"

    def chat(self) -> str:
        self._lab.model.forget()
        self._page.send("please count")
        call = self._lab.model.wait("count")
        detail = self._streamed(call) if self._stream else ""
        self._page.answer(COUNTED)
        self._page.settle()
        self._shot("answered")
        assert self._browser.text(ANSWER).split() == COUNTED.split(), self._browser.text(ANSWER)
        assert bool(call.request.json.get("stream")) == self._stream, "the model was asked for the other kind of answer"
        return detail

    def _streamed(self, call: Call) -> str:
        first = self._page.answer("1 2")
        assert call.request.answered_at is None, "text was shown only after the whole answer had been made"
        return f"first text {first * 1000:.0f} ms after the call"

    def messages(self) -> str:
        messages = self._lab.model.of("count")[-1].messages
        told = [(message["role"], message["content"]) for message in messages]
        assert not any("[Beg_" in content for _, content in told), told
        assert told[0][0] == "system" and CHARACTER in told[0][1], told[0]
        spoken = [(role, content) for role, content in told if role in ("user", "assistant")]
        assert [role for role, _ in spoken[:2]] == ["assistant", "user"], spoken
        assert spoken[1][1] == ("please count" if self._chat else "Ann: please count"), spoken
        if not self._chat:
            assert spoken[2:] == [("assistant", f"{CHARACTER}:")], spoken
        return ", ".join(f"{role} {content[:24]!r}" for role, content in told)

    def stop(self) -> str:
        self._page.send("slow please")
        call = self._lab.model.wait("slow", len(self._lab.model.of("slow")) + 1)
        if self._stream:
            self._page.answer("tick 3")
        else:
            time.sleep(1)
        self._shot("slow")
        clicked = self._browser.click(STOP)
        return stopped(call, clicked)

    def after_stop(self) -> str:
        self._page.settle()
        self._page.send("hello again")
        seconds = self._page.answer("Lab answer")
        self._page.settle()
        self._shot("after stop")
        roles = [message["role"] for message in self._lab.model.of("chat")[-1].messages]
        return f"answered {seconds * 1000:.0f} ms later; roles sent: {roles}"

    def swipe(self) -> str:
        return self._another(lambda: self._browser.click(".last_mes .swipe_right"))

    def regenerate(self) -> str:
        def choose() -> None:
            self._browser.click("#options_button")
            self._browser.click("#option_regenerate")

        return self._another(choose)

    def _another(self, ask: Callable[[], Any]) -> str:
        before, messages = self._browser.text(ANSWER), self._lab.model.of("chat")[-1].messages
        ask()
        self._browser.wait(lambda: "Lab answer" in self._browser.text(ANSWER) != before, "another answer")
        self._page.settle()
        after = self._browser.text(ANSWER)
        assert self._lab.model.of("chat")[-1].messages == messages, "the second request differs from the first"
        return f"{before!r}, then {after!r}, from the same messages"

    def image(self) -> str:
        self._browser.upload("#file_form_input", self._lab.picture)
        self._page.send("what is this")
        call = self._lab.model.wait("image")
        self._page.answer("Images seen: 1.")
        self._page.settle()
        self._shot("image")
        assert call.images[0].startswith("data:image/"), call.images[0][:60]
        return f"the model got image_url {call.images[0][:30]}..."

    def error(self) -> str:
        self._page.send("please fail")
        self._lab.model.wait("fail")
        notice = "" if self._silent else self._browser.wait(lambda: self._browser.text(NOTICE), "notice")
        self._shot("error")
        assert self._terse or FAILURE in notice, f"the notice says {notice!r}"
        self._page.settle()
        self._browser.run("toastr.remove()")
        self._page.send("hello again")
        self._page.answer("Lab answer")
        return f"notice: {notice[:60]!r}; the next message is answered"


def main() -> None:
    arguments = _arguments()
    report = Report()
    with Lab(arguments.launcher) as lab, Browser(arguments.chromedriver, arguments.chromium) as browser:
        for connection in CONNECTIONS:
            for stream in (True, False):
                _session(lab, browser, report, arguments, connection, stream)
    report.end()


def _session(
    lab: Lab, browser: Browser, report: Report, arguments: argparse.Namespace, connection: str, stream: bool
) -> None:
    """A SillyTavern of its own, with its settings, and all checks."""
    name = f"SillyTavern, {connection}, {'streamed' if stream else 'whole'}"

    def shot(what: str) -> None:
        browser.screenshot(arguments.screenshots / f"{name.replace(', ', ' ')} {what}.png")

    data = lab.folder / "sillytavern" / name.replace(", ", "-").replace(" ", "-")
    write_settings(arguments.sillytavern, data, connection, lab.server.url, stream)
    port = free_port()
    config = data / "config.yaml"
    config.write_text(CONFIG.format(data=data.as_posix(), port=port), encoding="utf-8")
    command = [arguments.node, "server.js", "--configPath", str(config), "--dataRoot", str(data), "--port", str(port)]
    report.on_failure = lambda check: shot(f"FAIL {check.split(': ')[1]}")
    with Program(command, folder=arguments.sillytavern) as program:
        program.wait_answer(f"http://127.0.0.1:{port}/", 180)
        page = Page(browser, f"http://127.0.0.1:{port}/")
        for what, check in Checks(lab, page, connection, stream, shot).all().items():
            report.check(f"{name}: {what}", check)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--sillytavern",
        default=os.environ.get("SILLYTAVERN"),
        type=Path,
        required="SILLYTAVERN" not in os.environ,
        metavar="FOLDER",
        help="the folder with SillyTavern's server.js (SILLYTAVERN)",
    )
    parser.add_argument("--node", default=os.environ.get("NODE", "node"), type=program_path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
