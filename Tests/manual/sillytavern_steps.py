"""What Docs/User/sillytavern.md tells its reader to do, step by step."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from Tests.integration.launcher import PROJECT
from Tests.manual.browser import ENTER, Browser
from Tests.manual.camera import Camera
from Tests.manual.scene import TALE, TALE_LATER, TALE_MEMORY, Scene

PAGE = PROJECT / "Docs" / "User" / "sillytavern.md"
DISCUSSION = "seraphina-1"
STATUS = "#rm_api_block .online_status_text"
STRICT = "Strict (user first, alternating roles; with tools)"
CHARACTER = "#CharID0"
GREETING = "You wake with a start"
FORMATTING = "#advanced-formatting-button .drawer-icon"


class Steps:
    """A browser in front of a fresh SillyTavern at ``url``."""

    def __init__(self, browser: Browser, scene: Scene, camera: Camera, url: str) -> None:
        self._browser = browser
        self._scene = scene
        self._camera = camera
        self._url = url

    def all(self) -> None:
        """Connect, chat with a character until it is remembered, import the template. Raises AssertionError."""
        self._open()
        self._connect()
        self._response_settings()
        self._name_discussion()
        self._chat()
        self._text_completion()

    def _open(self) -> None:
        self._browser.open(self._url)
        self._browser.wait(lambda: "Persona Name" in self._browser.text("dialog"), "welcome", 120)
        self._fill("dialog textarea", "Ann")
        self._browser.click("dialog .popup-button-ok")
        self._settle()

    def _connect(self) -> None:
        self._browser.click("#API-status-top")
        self._browser.choose("#main_api", "Chat Completion")
        self._browser.choose("#chat_completion_source", "Custom (OpenAI-compatible)")
        self._fill("#custom_api_url_text", f"{self._scene.server.url}/v1")
        self._browser.click("#api_button_openai")
        self._browser.wait(lambda: self._browser.text(STATUS) == "Valid", "connection")
        self._browser.choose("#model_custom_select", "me:memory")
        self._browser.choose("#custom_prompt_post_processing", STRICT)
        self._browser.click("#auto-connect-checkbox")
        self._browser.click("#test_api_button")
        self._browser.wait(lambda: "API connection successful!" in self._browser.text(".toast-message"), "test message")
        self._settle()
        self._camera.take("connection", "#rm_api_block", margin=0)
        self._browser.click("#API-status-top")
        self._settle()

    def _response_settings(self) -> None:
        self._browser.click("#leftNavDrawerIcon")
        self._browser.click("#oai_max_context_unlocked")
        self._settle()
        self._fill("#openai_max_context_counter", "32000")
        self._browser.run(
            "document.querySelector('#openai_max_context_counter').dispatchEvent(new Event('change', {bubbles: true}))"
        )
        assert self._browser.run("return document.querySelector('#stream_toggle').checked"), "streaming is off"
        self._settle()
        self._camera.take_area("response", 0, 0, 320, 436)
        self._browser.click("#leftNavDrawerIcon")
        self._settle()

    def _name_discussion(self) -> None:
        self._browser.click("#rightNavDrawerIcon")
        self._browser.click(CHARACTER)
        self._browser.wait(lambda: self._browser.count(".mes") == 1, "greeting")
        self._browser.click("#rightNavDrawerIcon")
        self._browser.click("#options_button")
        self._browser.click("#option_toggle_AN")
        self._settle()
        self._browser.type("#extension_floating_prompt", f"[DiscussionId]{DISCUSSION}[/DiscussionId]")
        self._browser.click('input[name="extension_floating_position"][value="0"]')
        self._settle()
        self._camera.take_area("authors-note", 0, 0, 960, 480)
        self._browser.click("#ANClose")
        self._settle()

    def _chat(self) -> None:
        for number, (question, answer) in enumerate(TALE, 1):
            seconds = self._say(question, answer)
            memory = self._scene.memories(DISCUSSION)
            print(f"message {number}: answered after {seconds:.1f} s, memories: {[str(path) for path in memory]}")
        assert self._scene.memories(DISCUSSION), "no memory was written"
        self._say(*TALE_LATER)
        assert self._scene.prompts(TALE_MEMORY), "the memory was not in the prompt"
        told = [str(message["content"]) for message in self._last_chat()]
        assert any(GREETING in text for text in told), "the greeting did not reach the model"
        assert not any("[DiscussionId]" in text for text in told), "the tag reached the model"
        self._camera.take("remembered", "#sheld", margin=0)

    def _last_chat(self) -> list[dict[str, Any]]:
        """The messages of the newest request for an answer that reached the model."""
        asked = [request.json["messages"] for request in self._scene.model.requests if request.path == "/api/chat"]
        return next(messages for messages in reversed(asked) if TALE_LATER[0] in str(messages[-1]["content"]))

    def _text_completion(self) -> None:
        self._browser.click("#API-status-top")
        self._browser.choose("#main_api", "Text Completion")
        self._browser.choose("#textgen_type", "Ollama")
        self._fill("#ollama_api_url_text", self._scene.server.url)
        self._browser.run("[...document.querySelectorAll('#api_button_textgenerationwebui')].at(-1).click()")
        self._browser.choose("#ollama_model", "me:memory")
        self._browser.click("#API-status-top")
        self._settle()
        self._browser.click(FORMATTING)
        self._browser.upload("#af_master_import_file", self._template())
        self._browser.wait(lambda: "Choose what to import" in self._browser.text("dialog"), "choice")
        self._browser.click("dialog .popup-button-ok")
        self._browser.wait(lambda: "Imported 1 settings" in self._browser.text(".toast-message"), "import")
        self._browser.click("label[for=instruct_enabled]")
        self._settle()
        self._camera.take_area("instruct", 320, 36, 960, 690)
        self._browser.click(FORMATTING)
        self._settle()
        sent = len(self._scene.model.requests)
        self._browser.type("#send_textarea", TALE_LATER[0] + ENTER)
        self._browser.wait(lambda: len(self._scene.model.requests) > sent, "text completion")
        messages = self._scene.model.requests[sent].json["messages"]
        roles = [message["role"] for message in messages]
        assert roles[:3] == ["system", "user", "assistant"] and GREETING in messages[2]["content"], messages[:3]
        print(f"text completion: the model got {len(roles)} messages: {', '.join(roles[:4])} ...")

    def _template(self) -> Path:
        """The template as the page has it, saved as it says."""
        block = re.search(r"```json other\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        assert block and "instruct" in json.loads(block[1]), "the page has no template"
        file = self._scene.folder / "wilmer.json"
        file.write_text(block[1], encoding="utf-8")
        return file

    def _say(self, question: str, answer: str) -> float:
        """Send a message and wait for its answer; seconds until then."""
        spoken = re.sub(r"\*", "", answer)
        began = self._browser.type("#send_textarea", question + ENTER)
        self._browser.wait(lambda: spoken in self._browser.text(".last_mes .mes_text"), f"answer to '{question}'")
        self._browser.wait(lambda: not self._browser.count("#mes_stop") and self._browser.count("#send_but"), "its end")
        seconds = time.monotonic() - began
        self._settle()
        return seconds

    def _fill(self, selector: str, text: str) -> None:
        """Put a text into a field in place of what it holds."""
        self._browser.wait(lambda: self._browser.count(selector), selector)
        self._browser.run(
            "const fields = [...document.querySelectorAll(arguments[0])];"
            "const field = fields.filter(e => e.getClientRects().length).at(-1);"
            "field.value = arguments[1]; field.dispatchEvent(new Event('input', {bubbles: true}))",
            selector,
            text,
        )

    def _settle(self) -> None:
        """Wait for panels that move and for work after an answer; take notices away."""
        time.sleep(1.2)
        self._browser.run("globalThis.toastr?.remove()")
