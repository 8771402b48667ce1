"""Open WebUI against WilmerAI in a real browser; see README.md here."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from Tests.manual.browser import ENTER, ESCAPE, Browser
from Tests.manual.lab import (
    BACKGROUND_NODE,
    COUNTED,
    FAILURE,
    FOLLOW_UP,
    MODEL,
    TAG,
    TASKS,
    TITLE,
    TOOL,
    Lab,
)
from Tests.manual.program import Program, free_port
from Tests.manual.report import Report, argument_parser, program_path, stopped

CONNECTIONS = {"OpenAI": MODEL, "Ollama": f"{MODEL}:latest"}
ANSWER = ".chat-assistant"
INPUT = "#chat-input"
STOP = 'button[aria-label="Stop"]'
FILE_INPUT = "input[type=file][multiple]"
WORD = "periwinkle"
TOOL_CODE = f'''class Tools:
    def {TOOL}(self) -> str:
        """Give the word of the lab."""
        return "{WORD}"
'''


def settings(data: Path, wilmer: str) -> dict[str, str]:
    """The environment of an Open WebUI that stays on this machine and talks to WilmerAI twice."""
    return {
        "DATA_DIR": str(data),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "lab",
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai",
        "ENABLE_VERSION_UPDATE_CHECK": "False",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "1",
        "SCARF_NO_ANALYTICS": "true",
        "ENABLE_EVALUATION_ARENA_MODELS": "False",
        "ENABLE_OPENAI_API": "True",
        "OPENAI_API_BASE_URL": f"{wilmer}/v1",
        "OPENAI_API_KEY": "sk-lab",
        "ENABLE_OLLAMA_API": "True",
        "OLLAMA_BASE_URL": wilmer,
    }


class Page:
    """Open WebUI as its user sees it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self._url = url
        self._token = self.api("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def api(self, path: str, body: Any = None) -> Any:
        """A call of Open WebUI's own interface, as the user."""
        key = {"Authorization": f"Bearer {self._token}"} if hasattr(self, "_token") else {}
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **key},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return json.loads(response.read())

    def new_chat(self, model: str, **options: str) -> None:
        """A fresh chat with one model selected."""
        query = "".join(f"&{name}={value}" for name, value in options.items())
        self.browser.open(f"{self._url}/?models={model}{query}")
        self.browser.wait(lambda: self.browser.count(INPUT), "message field", 60)
        self.browser.wait(lambda: self.browser.text("#model-selector-model-button"), "selected model")
        self.browser.run(
            "[...document.querySelectorAll('button')]"
            ".filter(e => e.innerText.startsWith('Okay, Let')).forEach(e => e.click())"
        )

    def send(self, text: str) -> None:
        """Type a message and send it."""
        self.browser.type(INPUT, text + ENTER)

    def answer(self, text: str, timeout: float = 20.0) -> float:
        """Wait for a text in the last answer; seconds until then."""
        began = time.monotonic()
        try:
            self.browser.wait(lambda: text in self.browser.text(ANSWER), "answer", timeout)
        except AssertionError:
            raise AssertionError(f"'{text}' is not in the answer; it says: {self.browser.text(ANSWER)!r}") from None
        return time.monotonic() - began

    def settle(self) -> None:
        """Wait until the answer is complete in the eyes of the page."""
        self.browser.wait(lambda: not self.browser.count(STOP), "end of the answer")

    def tags(self) -> list[str]:
        """The tags of the chat shown."""
        chat = self.api("/api/v1/chats/" + self.browser.address.rsplit("/", 1)[1])
        return [str(tag) for tag in chat["meta"].get("tags", [])]


class Checks:
    """The checks of one connection; each is run with a call of its name."""

    def __init__(self, lab: Lab, page: Page, connection: str, shot: Callable[[str], None]) -> None:
        self._lab = lab
        self._page = page
        self._browser = page.browser
        self._model = CONNECTIONS[connection]
        self._shot = shot

    def all(self) -> dict[str, Callable[[], str | None]]:
        return {
            "model list": self.models,
            "streamed chat": self.chat,
            "title, tags, follow-ups": self.tasks,
            "their workflow": self.background,
            "stop button": self.stop,
            "message after stop": self.after_stop,
            "regenerate": self.regenerate,
            "tool": self.tool,
            "turn after a tool": self.after_tool,
            "image": self.image,
            "error": self.error,
        }

    def models(self) -> str:
        self._page.new_chat(self._model)
        listed = [model["id"] for model in self._page.api("/api/models")["data"]]
        assert self._model in listed, f"listed: {listed}"
        self._browser.click("#model-selector-model-button")
        shown = self._browser.wait(lambda: self._browser.texts("[id^=model-option-]"), "list of models")
        self._shot("models")
        self._browser.type("body", ESCAPE)
        assert len(shown) == len(CONNECTIONS) and all(MODEL in line for line in shown), f"shown: {shown}"
        return f"listed: {listed}"

    def chat(self) -> str:
        self._lab.model.forget()
        self._page.new_chat(self._model)
        self._page.send("please count")
        call = self._lab.model.wait("count")
        first = self._page.answer("1 2")
        assert call.request.answered_at is None, "text was shown only after the whole answer had been made"
        self._shot("streaming")
        self._page.answer(COUNTED)
        assert self._browser.text(ANSWER).split() == COUNTED.split(), self._browser.text(ANSWER)
        self._page.settle()
        assert call.messages[-1] == {"role": "user", "content": "please count"}, call.messages
        return f"first text {first * 1000:.0f} ms after the call; {len(call.offered)} tools offered"

    def tasks(self) -> str:
        for kind in TASKS:
            self._lab.model.wait(kind)
        self._browser.wait(lambda: TITLE in self._browser.run("return document.title"), "title")
        assert TITLE in self._browser.text("#sidebar-chat-item"), "title missing in the side bar"
        self._browser.wait(lambda: f"{FOLLOW_UP} three" in self._browser.text("#messages-container"), "follow-ups")
        tags = self._browser.wait(self._page.tags, "tags")
        self._shot("answered")
        assert [tag.lower().replace("_", " ") for tag in tags] == [TAG.lower()], tags
        return f"tags by Open WebUI's API: {tags}"

    def background(self) -> str:
        ran = {kind: [call.node for call in self._lab.model.of(kind)] for kind in TASKS}
        chats = {call.node for call in self._lab.model.of("count")}
        assert all(set(nodes) == {BACKGROUND_NODE} for nodes in ran.values()), f"ran: {ran}"
        assert BACKGROUND_NODE not in chats, "the chat ran it too"
        return "backgroundTaskWorkflow made all of them"

    def stop(self) -> str:
        self._page.new_chat(self._model)
        self._page.send("slow please")
        self._page.answer("tick 3")
        self._shot("slow")
        clicked = self._browser.click(STOP)
        return stopped(self._lab.model.of("slow")[-1], clicked)

    def after_stop(self) -> str:
        self._page.settle()
        before = len(self._browser.texts(ANSWER))
        self._page.send("hello again")
        self._browser.wait(lambda: len(self._browser.texts(ANSWER)) > before, "second answer")
        seconds = self._page.answer("Lab answer")
        self._page.settle()
        self._shot("after stop")
        roles = [message["role"] for message in self._lab.model.of("chat")[-1].messages]
        return f"answered {seconds * 1000:.0f} ms later; roles sent: {roles}"

    def regenerate(self) -> str:
        before = self._browser.text(ANSWER)
        self._browser.click('button[aria-label="Regenerate"]')
        self._browser.click_text("Try Again")
        self._browser.wait(lambda: "Lab answer" in self._browser.text(ANSWER) != before, "another answer")
        self._page.settle()
        return f"{before!r}, then {self._browser.text(ANSWER)!r}"

    def tool(self) -> str:
        self._page.new_chat(self._model, **{"tool-ids": TOOL})
        calls, results = (len(self._lab.model.of(kind)) for kind in ("tool call", "tool result"))
        self._page.send("please use the tool")
        called = self._lab.model.wait("tool call", calls + 1)
        assert TOOL in called.offered, f"offered: {called.offered}"
        result = self._lab.model.wait("tool result", results + 1)
        self._page.answer(f"The tool said: {WORD}")
        self._page.settle()
        self._shot("tool")
        call, answer = result.messages[-2:]
        assert call["role"] == "assistant" and call["tool_calls"][0]["function"]["name"] == TOOL, call
        assert answer["role"] == "tool" and answer["tool_call_id"] == call["tool_calls"][0]["id"], answer
        return f"{len(called.offered)} tools offered, {TOOL} called once, its result came back"

    def after_tool(self) -> str:
        seen = len(self._lab.model.of("chat"))
        self._page.send("thanks")
        call = self._lab.model.wait("chat", seen + 1)
        self._page.answer("Lab answer")
        self._page.settle()
        roles = [message["role"] for message in call.messages if message["role"] != "system"]
        assert roles == ["user", "assistant", "tool", "assistant", "user"], roles
        return "the exchange with the tool was kept"

    def image(self) -> str:
        self._page.new_chat(self._model)
        seen = len(self._lab.model.of("image"))
        self._browser.upload(FILE_INPUT, self._lab.picture)
        self._browser.wait(
            lambda: self._browser.run("return document.querySelectorAll('#message-input-container img').length"),
            "preview of the image",
        )
        self._page.send("what is this")
        call = self._lab.model.wait("image", seen + 1)
        self._page.answer("Images seen: 1.")
        self._page.settle()
        self._shot("image")
        assert call.images[0].startswith("data:image/"), call.images[0][:60]
        return f"the model got image_url {call.images[0][:30]}..."

    def error(self) -> str:
        self._page.new_chat(self._model)
        self._page.send("please fail")
        self._browser.wait(lambda: FAILURE in self._browser.text("#messages-container"), "error message")
        self._page.settle()
        self._shot("error")
        self._page.send("hello again")
        self._page.answer("Lab answer")
        return "the model's own words are shown, and the next message is answered"


def main() -> None:
    arguments = _arguments()
    report = Report()
    with Lab(arguments.launcher) as lab:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [arguments.open_webui, "serve", "--host", "127.0.0.1", "--port", str(port)]
        program = Program(command, settings(lab.folder / "open-webui", lab.server.url))
        with program, Browser(arguments.chromedriver, arguments.chromium) as browser:
            program.wait_answer(f"{url}/health", 180)
            page = Page(browser, url)
            page.api(
                "/api/v1/tools/create",
                {"id": TOOL, "name": "Lab word", "content": TOOL_CODE, "meta": {"description": "The word of the lab"}},
            )
            for connection in CONNECTIONS:
                _session(lab, page, report, connection, arguments.screenshots)
    report.end()


def _session(lab: Lab, page: Page, report: Report, connection: str, screenshots: Path) -> None:
    """All checks of one connection."""

    def shot(name: str) -> None:
        page.browser.screenshot(screenshots / f"Open WebUI {connection} {name}.png")

    report.on_failure = lambda name: shot(f"FAIL {name.split(': ')[1]}")
    for name, check in Checks(lab, page, connection, shot).all().items():
        report.check(f"Open WebUI, {connection}: {name}", check)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--open-webui",
        default=os.environ.get("OPEN_WEBUI", "open-webui"),
        type=program_path,
        help="the program open-webui (OPEN_WEBUI)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
