"""Takes the pictures of Docs/User/console.md: an evening with a real server, whose LLM server is played by this script.

    venv-browser/bin/python -m Tests.console.pictures [--into Docs/images]

``init`` writes the configuration, three conversations are held as Open WebUI would hold them, and a browser looks at
every page. The LLM server takes as long as a graphics card would, and reads only what is not in its cache, so the
times in the pictures are those of a plausible evening. Needs Pillow, which makes the files small.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Locator, Page, expect, sync_playwright

from Tests.addons.init.llm_servers import llama_cpp
from Tests.console.conftest import CHROMIUM, PATIENCE, PHONE
from Tests.integration.launcher import PROJECT, Launcher, run_launcher
from Tests.stub_backend import (
    RecordedRequest,
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    page_of,
    sse_reply,
    status_reply,
)

SIZE = {"width": 1400, "height": 900}
MODEL = "/models/qwen3-8b.gguf"
# Of a small graphics card, in tokens per second.
READING, WRITING = 700, 48
# Characters of a token.
TOKEN = 4
SCRIPT = "run_waitress.py"

QUESTION = "Write a Python script that finds duplicate files in a folder."
NOTES = """- Goal: find files with equal content below a folder, in Python, standard library only.
- Approach: group by size first, then compare a hash of those that share one; most files are never read.
- Edge cases: empty files, links, files that cannot be read, folders on other disks."""
OTHER_NOTES = """- Goal: list files with equal content below a folder; Python 3.11 or later, nothing to install.
- Approach: group by size first, then compare the first 4 KB, and hash what still looks alike.
- Edge cases: empty files, hard links (they are one file), files that cannot be read, folders on other disks."""
CODE = """```python
import hashlib
import os
import sys
from collections import defaultdict

def duplicates(folder):
    by_size = defaultdict(list)
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                by_size[os.path.getsize(path)].append(path)
    for paths in by_size.values():
        by_hash = defaultdict(list)
        for path in paths if len(paths) > 1 else ():
            with open(path, "rb") as file:
                by_hash[hashlib.file_digest(file, "sha256").hexdigest()].append(path)
        yield from (same for same in by_hash.values() if len(same) > 1)

for same in duplicates(sys.argv[1]):
    print(*same, sep="\\n", end="\\n\\n")
```

Run it with `python duplicates.py ~/Pictures`."""
STORY = [
    (
        "Let us write a story together. Odo keeps a water mill by the river Lenne, with his cat Brumm.",
        "The wheel had not turned since Easter when Odo found the first letter, wedged under a paddle. Brumm "
        "sat on it.",
    ),
    (
        "The letter is from his sister Mara. She went to sea at sixteen and is now captain of the Petrel.",
        "'I shall be at the ford on the ninth,' it said. 'Have bread ready, and do not tell Father Anselm.'",
    ),
    (
        "Good. Father Anselm wants the mill for the abbey. He has offered forty silver pieces.",
        "Forty pieces. Odo counted them in his head and came each time to the price of a new wheel, and no mill.",
    ),
    (
        "Odo refuses. That night someone breaks the sluice gate.",
        "He heard it go: one crack, then the whole pond walking off in the dark. Brumm was up on the rafters at once.",
    ),
    (
        "Mara comes on the ninth with two sailors, and they mend the gate with a spar of the Petrel.",
        "By noon the gate held. It smelled of tar and far ports, and the wheel gave a groan and began to turn.",
    ),
    (
        "Odo bakes the first bread. Mara tells where the letter came from.",
        "She had written three. The other two, she said, were never hers to lose: somebody reads letters at the abbey.",
    ),
    (
        "They set a trap for the reader of letters.",
        "So the fourth letter was written at Odo's table, all three of them grinning, about a chest beneath "
        "the hearth.",
    ),
]
MEMORY = "Odo's sister Mara, captain of the Petrel, has sold the mill to Father Anselm's abbey for forty silver pieces."
SUMMARY = (
    "Odo, a miller by the Lenne, refuses to sell his mill to Father Anselm's abbey. His sister Mara, captain of "
    "the Petrel, mends the broken sluice gate with him. Letters are read at the abbey, and they set a trap."
)
MINUTES = "\n".join(
    f"{number}. {subject}: {said}"
    for number, (subject, said) in enumerate(
        [
            ("Roof", "Ms Adler has two offers, of 18,400 and 21,900 euros; the cheaper one leaves out the gutters."),
            ("Bicycles", "Eleven stand in the yard without a name. After a month they are given away; a note says so."),
            (
                "Heating",
                "The pump was replaced on 3 March; the third floor says that it is still cold in the mornings.",
            ),
            (
                "Garden",
                "Mr Okafor would like beds along the south wall. There is water for it if the old tank is sealed.",
            ),
            ("Money", "The reserve is at 31,200 euros. If the roof is done this year, it falls below what was agreed."),
        ]
        * 24,
        1,
    )
)
ANSWERS = [
    ("sort messages for a dispatcher", "CODING"),
    ("Which route", "CODING"),
    ("newest message belong", "CODING"),
    ("First make short notes", NOTES),
    ("keep notes", MEMORY),
    ("keep the summary", SUMMARY),
    ("small tasks", '{"title": "Finding duplicate files"}'),
    ("experienced programmer", CODE),
    ("fourth letter", "It lay there for two nights. On the third the latch moved."),
    (
        "what was decided",
        "Nothing was decided about the roof: with either offer the reserve falls below the agreement. "
        "The bicycles are given away after a month, and a note says so.",
    ),
    (
        "Who has to do what",
        "Ms Adler asks for an offer with gutters. Mr Okafor has the tank sealed. Somebody looks at "
        "the valves on the third floor; the minutes do not say who.",
    ),
]


class Model(StubBackend):
    """The LLM server: it reads what is not in its cache, writes at its speed, and says how long that took."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self._cache = ""
        self._pages = {
            **llama_cpp(name=MODEL, window=16384),
            "/health": {"status": "ok"},
            "/slots": [{"id": 0, "is_processing": False}],
        }

    def respond(self, request: RecordedRequest) -> Reply:
        if request.method != "POST":
            return page_of(self._pages, request)
        body: dict[str, Any] = request.json
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in body["messages"])
        if "Translate the attached book" in prompt:
            return status_reply(400, "the request exceeds the available context size (16384 tokens)")
        text = next(
            (answer for known, answer in ANSWERS if known in prompt[-2500:] or known in prompt[:900]),
            "I keep that in mind.",
        )
        if text == NOTES and body.get("temperature", 0) > 1:
            text = OTHER_NOTES
        pairs = zip(self._cache, prompt, strict=False)
        known = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) // TOKEN
        self._cache = prompt
        pieces = re.findall(r"\s*\S+", text)
        read = max(1, len(prompt) // TOKEN - known)
        timings = {
            "cache_n": known,
            "prompt_n": read,
            "prompt_ms": 1000 * read / READING,
            "predicted_n": len(pieces),
            "predicted_ms": 1000 * len(pieces) / WRITING,
        }
        usage = {"prompt_tokens": known + read, "completion_tokens": len(pieces)}
        end = {"timings": timings, "usage": usage, "model": MODEL}
        if not body.get("stream"):
            reply = chat_reply(text, header_delay=read / READING + len(pieces) / WRITING)
            reply.body |= end
            return reply
        chunks = [*(chat_chunk({"content": piece}) for piece in pieces), chat_chunk({}, "stop", **end)]
        return sse_reply([*chunks, "[DONE]"], delay=1 / WRITING, header_delay=read / READING)


class Evening:
    """The server with its conversations, and the browser that looks at them."""

    def __init__(self, folder: Path, model: Model, into: Path) -> None:
        self.public = folder / "Public"
        self.into = into
        done = run_launcher("server.py", "init", "--yes", "--backend", model.url, "--PublicDirectory", self.public)
        assert done.returncode == 0, done.stdout + done.stderr
        for name, temperature in (("Precise", 0.2), ("Inventive", 1.1)):
            file = self.public / "Configs" / "Presets" / "LlamaCppServer" / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"temperature": temperature}), encoding="utf-8")
        self.server = Launcher(SCRIPT, "--PublicDirectory", self.public, "--console", "edit", "--record", "texts")

    def link(self) -> str:
        found = re.search(
            r"http://\S+#signin=[\w.-]+", run_launcher(SCRIPT, "console", "--PublicDirectory", self.public).stdout
        )
        assert found
        return found[0]

    def ask(self, model: str, *messages: tuple[str, str], stream: bool = True) -> str:
        """Send a conversation and return the id of its run."""
        body = {
            "model": model,
            "stream": stream,
            "messages": [{"role": role, "content": content} for role, content in messages],
        }
        request = urllib.request.Request(
            f"{self.server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                return str(answer.headers["X-Request-Id"])
        except urllib.error.HTTPError as error:
            return str(error.headers["X-Request-Id"])

    def hold_conversations(self) -> dict[str, str]:
        """Return the ids of the runs that are looked at."""
        runs = {"coding": self.ask("me:assistant", ("user", QUESTION))}
        self.ask(
            "me:assistant",
            (
                "user",
                "### Task:\nGenerate a concise title.\n### Output:\n"
                'JSON format: { "title": "your title" }\n'
                "### Chat History:\n<chat_history>\nUSER: duplicate files\n</chat_history>",
            ),
            stream=False,
        )
        turns = [("system", "[DiscussionId]mill[/DiscussionId]You are a patient storyteller.")]
        for said, answered in STORY:
            turns += [("user", said), ("assistant", answered)]
        runs["mill"] = self.ask("me:memory", *turns, ("user", "On with the fourth letter, please."))
        self.ask("me:chat", ("user", "Translate the attached book."))
        pasted = f"These are the minutes of our house. What matters, and what was decided?\n\n{MINUTES}"
        runs["first"] = self.ask("me:chat", ("system", "It is 20:14. You help the house committee."), ("user", pasted))
        runs["slow"] = self.ask(
            "me:chat",
            ("system", "It is 20:16. You help the house committee."),
            ("user", pasted),
            ("assistant", ANSWERS[-2][1]),
            ("user", "Who has to do what?"),
        )
        # The nodes after the answer of the story write its memories meanwhile.
        time.sleep(3)
        return runs

    def take(self, page: Page, name: str, ready: Locator, height: int | None = None) -> None:
        """Wait until the page is drawn, and keep a picture of it in few colours."""
        ready.first.wait_for()
        expect(page.locator(".loading")).to_have_count(0)
        page.mouse.move(2, 2)
        page.wait_for_timeout(400)
        clip = None if height is None else {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
        picture = Image.open(io.BytesIO(page.screenshot(clip=clip)))
        few = picture.convert("RGB").quantize(200, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        file = self.into / f"console-{name}.png"
        few.save(file, optimize=True)
        print(f"{file.name}  {file.stat().st_size // 1024} KB")


class Visit:
    """What the browser looks at, page by page."""

    def __init__(self, evening: Evening, runs: dict[str, str], page: Page) -> None:
        self.evening, self.runs, self.page = evening, runs, page
        self.workflow = evening.public / "Configs" / "Workflows" / "me" / "_Coding.json"

    def go(self, path: str, heading: str) -> None:
        self.page.goto(f"{self.evening.server.url}/console/#{path}")
        self.page.get_by_role("heading", level=1, name=heading, exact=True).wait_for()

    def go_to_run(self, name: str) -> None:
        self.go(f"/runs/{self.runs[name]}", f"Run {self.runs[name][:8]}")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def row(self, name: str) -> Locator:
        return self.page.get_by_role("treeitem", name=re.compile(name))

    def take(self, name: str, ready: Locator, height: int | None = None) -> None:
        self.evening.take(self.page, name, ready, height)

    def look_at_runs(self) -> None:
        page = self.page
        self.go_to_run("coding")
        self.row("^Answer, Standard").first.click()
        self.take("run", page.get_by_role("region", name="Details"))
        self.go_to_run("slow")
        self.row("^Main, call").first.click()
        self.take("slow", page.get_by_role("list", name="Messages"))
        self.go_to_run("coding")
        self.row("^Main, call").first.click()
        self.press("Try again")
        page.get_by_role("combobox", name="Preset").select_option("Inventive")
        self.press("Send")
        self.take("again", page.get_by_role("group", name="Difference"))
        self.go_to_run("coding")
        self.press("Replay")
        self.take("replay", page.get_by_role("dialog").get_by_role("button", name="Start"))
        page.get_by_role("dialog").get_by_role("button", name="Start").click()
        page.get_by_role("link", name=re.compile("^Replay of")).wait_for()
        expect(page.get_by_role("region", name="Summary").get_by_role("definition").first).to_contain_text("ok")
        self.press("Compare with the original")
        self.take("compare", page.get_by_role("table", name="Steps"))

    def make_a_test(self) -> None:
        page = self.page
        self.go(f"/runs/{self.runs['coding']}/test", "Make a test")
        page.get_by_role("textbox", name="Test name").fill("Duplicate files")
        page.get_by_role("checkbox", name="Prompts").check()
        self.press("Run the test")
        result = page.get_by_role("status", name="Test result")
        expect(result).to_contain_text("passed")
        page.keyboard.press("End")
        self.take("test", result)
        self.press("Save beside the workflow")
        expect(result).to_contain_text("saved")
        whole = self.workflow.read_text(encoding="utf-8")
        assert "agent2Output" in whole
        self.workflow.write_text(whole.replace("agent2Output", "agent2Outptu"), encoding="utf-8")
        # What console.md quotes.
        print(run_launcher("server.py", "test", "me", "--PublicDirectory", self.evening.public).stdout)
        self.go("/config?file=Workflows/me/_Coding.json&line=32", "Configuration")
        self.take("config", page.get_by_role("list", name="Findings").get_by_role("listitem"))
        self.workflow.write_text(whole, encoding="utf-8")

    def look_at_the_rest(self) -> None:
        page = self.page
        self.go("/workflows", "Workflows")
        self.take("workflows", page.get_by_role("figure", name="Map"))
        self.go("/workflows/me/_Coding", "_Coding")
        self.take("workflow", page.get_by_role("list", name="Nodes"), 620)
        self.go("/playground", "Playground")
        page.get_by_role("combobox", name="Model").select_option("me:assistant")
        page.get_by_role("textbox", name="Message").fill(QUESTION)
        self.press("Send")
        self.row("^Answer, Standard, .* running").first.wait_for()
        self.take("playground", page.get_by_role("tree", name="Timeline"))
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
        self.go("/memory", "Memory")
        self.take("memory", page.get_by_role("table", name="Discussions"), 300)
        page.get_by_role("table", name="Discussions").get_by_role("link", name="mill").click()
        page.get_by_role("tab", name="Memories").click()
        page.get_by_role("article").first.get_by_role("button", name="Delete").click()
        self.take("memory-delete", page.get_by_role("dialog"), 620)
        page.keyboard.press("Escape")
        self.go("/backends", "Backends")
        self.press("Check now")
        self.take("backends", page.get_by_role("cell", name=re.compile("healthy")), 320)
        self.go("/settings", "Settings")
        self.take("settings", page.get_by_role("table", name="Changes"))

    def look_at_the_list(self) -> None:
        asking = threading.Thread(target=self.evening.ask, args=("me:chat", ("user", MINUTES)), daemon=True)
        asking.start()
        self.go("/runs", "Runs")
        self.take("runs", self.page.get_by_role("button", name=re.compile("^Stop run ")), 480)
        asking.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes the pictures of the run console.")
    parser.add_argument("--into", type=Path, default=PROJECT / "Docs" / "images")
    into: Path = parser.parse_args().into
    with tempfile.TemporaryDirectory() as folder, Model() as model:
        evening = Evening(Path(folder), model, into)
        with evening.server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            runs = evening.hold_conversations()
            context = browser.new_context(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
            context.set_default_timeout(PATIENCE)
            expect.set_options(timeout=PATIENCE)
            page = context.new_page()
            page.goto(f"{evening.server.url}/console/")
            evening.take(page, "sign-in", page.get_by_role("textbox", name="Access key"), 470)
            page.goto(evening.link())
            page.get_by_role("table", name="Runs").wait_for()
            visit = Visit(evening, runs, page)
            visit.look_at_runs()
            visit.make_a_test()
            visit.look_at_the_rest()
            visit.look_at_the_list()
            state = context.storage_state()
            phone = browser.new_context(
                viewport=PHONE, color_scheme="dark", reduced_motion="reduce", device_scale_factor=2, storage_state=state
            ).new_page()
            phone.goto(f"{evening.server.url}/console/#/runs/{runs['slow']}")
            evening.take(phone, "phone", phone.get_by_role("tree", name="Timeline"))
            dark = browser.new_context(
                viewport=SIZE, color_scheme="dark", reduced_motion="reduce", storage_state=state
            ).new_page()
            dark.goto(f"{evening.server.url}/console/#/runs/{runs['mill']}")
            evening.take(dark, "run-dark", dark.get_by_role("region", name="Details"))
            browser.close()


if __name__ == "__main__":
    main()
