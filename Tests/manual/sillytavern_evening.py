"""An evening of role-play in SillyTavern: 60 messages, swipes, an edit, a deletion, a branch and back, a new chat.

After each step the next message asks for something, and what reached the model says what was remembered. See README.md
here.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from Tests.manual.browser import Browser
from Tests.manual.program import Program, free_port
from Tests.manual.report import Report, argument_parser, program_path
from Tests.manual.scene import PretendOllama, Scene
from Tests.manual.sillytavern import CHARACTER, CONFIG, Page

DISCUSSION = "seraphina"
THINGS = (
    "anchor basket candle dagger easel feather goblet harp inkwell jug kettle ladder mirror needle oar pillow quill "
    "ribbon saddle teapot umbrella violin whistle yarn zither bellows compass drum flute gloves"
).split()
"""What the user names, one in each message; the answer to it names the place."""
PLACES = (
    "attic barn cellar dairy eaves forge garden hallway icehouse jetty kitchen larder meadow nook orchard pantry "
    "quarry reedbed stable tower undercroft vineyard well yard zenith bakery chapel dock ferry grove"
).split()
_LATE = re.compile(r"<(?:notes|summary|earlier)>.*?</(?:notes|summary|earlier)>", re.DOTALL)
_SAID = re.compile(r"I lost my (\w+) yesterday")


def answer_to(thing: str) -> str:
    """The line of the character about a thing."""
    return f"*She nods.* The {thing} lies in the {PLACES[THINGS.index(thing)]}."


class Storyteller(PretendOllama):
    """The character; as the one who keeps notes, it repeats what it is given."""

    pace = 0.001

    def say(self, system: str, asked: str) -> str:
        if "keep notes" in system or "keep the summary" in system:
            given = asked[asked.find("<") :]
            return "\n".join(re.findall(r"(?:User|Assistant|Seraphina|Ann): (.+)", given) or [given])
        thing = _SAID.search(asked.strip().splitlines()[-1])
        return answer_to(thing[1]) if thing and thing[1] in THINGS else "*She thinks.* Let me see."

    def shown(self) -> str:
        """All messages of the newest call for an answer."""
        asked = [r.json["messages"] for r in self.requests if r.path == "/api/chat"]
        answers = [messages for messages in asked if "keep " not in str(messages[0]["content"])[:4000]]
        return "\n".join(str(message["content"]) for message in answers[-1])


class Evening:
    """The steps, in their order; each returns what it saw."""

    def __init__(self, page: Page, scene: Scene, model: Storyteller, shot: Callable[[str], None]) -> None:
        self._page, self._scene, self._model, self._shot = page, scene, model, shot
        self._browser = page.browser

    def steps(self) -> dict[str, Callable[[], str]]:
        return {
            "sixty messages": self.sixty,
            "swipes": self.swipes,
            "an old message edited": self.edited,
            "two old messages deleted": self.deleted,
            "a branch": self.branched,
            "back from the branch": self.returned,
            "a new chat with the character": self.new_chat,
        }

    def sixty(self) -> str:
        self._page.open()
        for thing in THINGS:
            self._say(f"I lost my {thing} yesterday.", answer_to(thing))
        return self._known("anchor", "attic")

    def swipes(self) -> str:
        for _ in range(3):
            before = len(self._model.requests)
            self._browser.click(".last_mes .swipe_right")
            self._browser.wait(lambda before=before: len(self._model.requests) > before, "a swipe")  # type: ignore[misc]
            self._page.settle()
            self._written()
        return self._known("dagger", "dairy")

    def edited(self) -> str:
        self._edit(4, "*She nods.* The basket lies in the volcano.")
        return self._known("basket", "volcano", gone="the basket lies in the barn")

    def deleted(self) -> str:
        self._command("/cut 5-6")
        return self._known("easel", "eaves", gone="candle")

    def branched(self) -> str:
        self._command("/branch-create 20")
        self._browser.wait(lambda: self._browser.count(".mes") <= 22, "the branch")
        self._page.settle()
        return self._known("easel", "eaves", gone="violin")

    def returned(self) -> str:
        self._command("/checkpoint-exit")
        self._browser.wait(lambda: self._browser.count(".mes") > 30, "the main chat")
        self._page.settle()
        return self._known("violin", "vineyard", gone="candle")

    def new_chat(self) -> str:
        self._command("/newchat")
        self._browser.wait(lambda: self._browser.count(".mes") == 1, "a new chat")
        self._say("Good evening again.", "Let me see.")
        return self._known("gloves", "grove", gone="candle")

    def _known(self, thing: str, place: str, gone: str = "") -> str:
        """Ask for a thing; raises AssertionError if its place did not reach the model, or what is gone did."""
        self._say(f"Tell me where the {thing} lies.", "Let me see.")
        shown = self._model.shown()
        self._shot(thing)
        late = " / ".join(_LATE.findall(shown))
        assert place in shown, f"'{place}' is not in the prompt of {len(shown)} characters; remembered: {late[:1500]}"
        assert not gone or gone.lower() not in shown.lower(), f"'{gone}' is in the prompt: {shown}"
        lines = [line.strip() for line in shown.splitlines() if place in line]
        return f"the model got: {lines[0][:110]!r}" + (f"; nothing of {gone!r}" if gone else "")

    def _say(self, text: str, answer: str) -> None:
        before = len(self._browser.texts(".mes"))
        self._page.send(text)
        self._browser.wait(lambda: len(self._browser.texts(".mes")) >= before + 2, f"answer to '{text}'", 60)
        self._page.answer(answer.replace("*", ""), 60)
        self._page.settle()
        self._written()

    def _written(self) -> None:
        """Wait until the memories behind the answer are written."""
        count = -1
        while count != len(self._model.requests):
            count = len(self._model.requests)
            time.sleep(0.4)

    def _edit(self, number: int, text: str) -> None:
        place = f'.mes[mesid="{number}"]'
        self._browser.run("document.querySelector(arguments[0]).scrollIntoView()", place)
        self._browser.run("document.querySelector(arguments[0] + ' .mes_edit').click()", place)
        self._browser.wait(lambda: self._browser.count("#curEditTextarea"), "the field")
        self._browser.run(
            "const field = document.querySelector('#curEditTextarea'); field.value = arguments[0];"
            "field.dispatchEvent(new Event('input', {bubbles: true}));",
            text,
        )
        self._browser.run("document.querySelector(arguments[0] + ' .mes_edit_done').click()", place)
        self._browser.wait(lambda: text.split("* ")[1] in self._browser.text(place), "the edited message")

    def _command(self, command: str) -> None:
        self._browser.run(
            "return SillyTavern.getContext().executeSlashCommandsWithOptions(arguments[0]).then(() => true)", command
        )


def write_settings(install: Path, data: Path, wilmer: str) -> None:
    """The connection to WilmerAI, and the discussion id in the main prompt, so that all chats share it."""
    values: dict[str, Any] = json.loads((install / "default" / "content" / "settings.json").read_text(encoding="utf-8"))
    values.update(firstRun=False, username="Ann", main_api="openai")
    values["power_user"].update(auto_connect=True, auto_load_chat=False)
    values["oai_settings"].update(
        chat_completion_source="custom",
        custom_url=f"{wilmer}/v1",
        custom_model="me:memory",
        stream_openai=True,
        openai_max_context=2000,
        openai_max_tokens=300,
    )
    for prompt in values["oai_settings"]["prompts"]:
        if prompt["identifier"] == "main":
            prompt["content"] = f"[DiscussionId]{DISCUSSION}[/DiscussionId] You are {{{{char}}}}."
    file = data / "default-user" / "settings.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")


def main() -> None:
    arguments = _arguments()
    report, model = Report(), Storyteller()
    with Scene(arguments.launcher, 0, model) as scene, Browser(arguments.chromedriver, arguments.chromium) as browser:
        data, port = scene.folder / "sillytavern", free_port()
        write_settings(arguments.sillytavern, data, scene.server.url)
        config = data / "config.yaml"
        config.write_text(CONFIG.format(data=data.as_posix(), port=port), encoding="utf-8")
        command = [arguments.node, "server.js", "--configPath", str(config), "--dataRoot", str(data)]
        with Program([*command, "--port", str(port)], folder=arguments.sillytavern) as program:
            program.wait_answer(f"http://127.0.0.1:{port}/", 180)
            page = Page(browser, f"http://127.0.0.1:{port}/")
            evening = Evening(page, scene, model, _shots(browser, arguments.screenshots))
            for name, step in evening.steps().items():
                report.check(name, step)
    report.end()


def _shots(browser: Browser, folder: Path) -> Callable[[str], None]:
    return lambda what: browser.screenshot(folder / f"evening {CHARACTER} {what}.png")


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--sillytavern", type=Path, required=True, metavar="FOLDER", help="the folder of server.js")
    parser.add_argument("--node", default="node", type=program_path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
