"""What Docs/User/open-webui.md tells its reader to do, step by step."""

from __future__ import annotations

import time

from Tests.manual.browser import ENTER, Browser
from Tests.manual.camera import Camera
from Tests.manual.open_webui import ANSWER, INPUT, STOP, Page
from Tests.manual.scene import FOLLOW_UP, TALK, TALK_LATER, TALK_MEMORY, TITLE, Scene

DISCUSSION = "kitchen"
SYSTEM_PROMPT = "You help me plan my kitchen.\n[DiscussionId]kitchen[/DiscussionId]"
SYSTEM_FIELD = 'textarea[placeholder="Enter system prompt"]'
KEY_FIELD = 'input[placeholder="API Key"]'
MODELS = ["me:assistant", "me:chat", "me:memory"]
NOTICE = "[data-sonner-toast]"


class Steps:
    """A browser in front of a fresh Open WebUI at ``url``."""

    def __init__(self, browser: Browser, scene: Scene, camera: Camera, url: str) -> None:
        self._browser = browser
        self._scene = scene
        self._camera = camera
        self._url = url

    def all(self) -> None:
        """Connect, choose a model, name the discussion, chat until it is remembered. Raises AssertionError."""
        self._open()
        self._connect()
        # an Ollama of this computer, whose models would stand in the list, too
        Page(self._browser, self._url).api(
            "/ollama/config/update", {"ENABLE_OLLAMA_API": False, "OLLAMA_BASE_URLS": [], "OLLAMA_API_CONFIGS": {}}
        )
        self._choose_model("me:memory")
        self._name_discussion()
        self._chat()

    def _open(self) -> None:
        self._browser.open(self._url)
        self._browser.wait(lambda: self._browser.count(INPUT), "message field", 90)
        self._browser.click_text("Okay, Let's Go!", 30)

    def _connect(self) -> None:
        self._browser.click('button[aria-label="User menu"]')
        self._browser.click_text("Settings")
        self._browser.click_text("Connections")
        self._browser.wait(lambda: self._browser.count('button[aria-label="Add Connection"]') == 2, "both kinds")
        self._browser.wait(lambda: not self._browser.count(NOTICE), "end of the notice", 30)
        self._camera.take_area("connections", 32, 32, 1241, 725)
        self._browser.run("document.querySelector('button[aria-label=\"Add Connection\"]').click()")
        self._browser.type("#url-input", f"{self._scene.server.url}/v1")
        self._browser.type(KEY_FIELD, "wilmer")
        self._browser.click('[aria-label="Verify Connection"]')
        self._browser.wait(lambda: "Server connection verified" in self._browser.text(NOTICE), "verification")
        self._browser.click('[aria-label="Make password visible in the user interface"]')
        time.sleep(0.5)
        self._photograph_last_dialog("add-connection")
        self._browser.click_text("Save")
        self._browser.wait(
            lambda: any("OpenAI API settings updated" in text for text in self._browser.texts(NOTICE)),
            "saved connection",
        )
        self._browser.click_text("Back")

    def _photograph_last_dialog(self, name: str) -> None:
        box = self._browser.run(
            "const field = document.querySelector('#url-input');"
            "let box = field; while (!box.innerText.startsWith('Add Connection')) box = box.parentElement;"
            "const seen = box.getBoundingClientRect(); return [seen.left, seen.top, seen.right, seen.bottom]"
        )
        self._camera.take_area(name, box[0] - 8, box[1] - 8, box[2] + 8, box[3] + 8)

    def _choose_model(self, model: str) -> None:
        self._browser.open(self._url)
        self._browser.wait(lambda: self._browser.count(INPUT), "message field", 60)
        self._browser.wait(lambda: "me:" in self._browser.text("#model-selector-model-button"), "models")
        self._browser.click("#model-selector-model-button")
        shown = self._browser.wait(lambda: self._browser.texts("[id^=model-option-]"), "list of models")
        assert shown == MODELS, shown
        time.sleep(1)
        self._camera.take_area("models", 270, 220, 1050, 540)
        self._browser.run(
            "[...document.querySelectorAll('[id^=model-option-]')]"
            ".find(e => e.innerText.trim() === arguments[0]).click()",
            model,
        )
        self._browser.wait(lambda: self._browser.text("#model-selector-model-button").strip() == model, "choice")

    def _name_discussion(self) -> None:
        self._browser.click('button[aria-label="Controls"]')
        self._browser.type(SYSTEM_FIELD, SYSTEM_PROMPT)

    def _chat(self) -> None:
        for number, (question, answer) in enumerate(TALK, 1):
            began = self._say(question, answer)
            memory = self._scene.memories(DISCUSSION)
            print(f"message {number}: answered after {began:.1f} s, memories: {[str(path) for path in memory]}")
            assert bool(memory) == (number >= 7), "the first memory comes with the seventh message"
        self._say(*TALK_LATER)
        assert self._scene.prompts(TALK_MEMORY), "the memory was not in the prompt"
        self._browser.wait(lambda: TITLE in self._browser.run("return document.title"), "title")
        self._browser.wait(lambda: FOLLOW_UP in self._browser.text("#messages-container"), "follow-ups")
        time.sleep(1)
        self._camera.take_area("remembered", 42, 0, 1280, 757)

    def _say(self, question: str, answer: str) -> float:
        """Send a message and wait for its answer; seconds until then."""
        began = self._browser.type(INPUT, question + ENTER)
        self._browser.wait(lambda: answer in self._browser.text(ANSWER), f"answer to '{question}'")
        self._browser.wait(lambda: not self._browser.count(STOP), "end of the answer")
        seconds = time.monotonic() - began
        time.sleep(1.5)  # the next step of the workflow, titles, and the page
        return seconds
