"""What the pictures of the documentation show: a scripted Ollama, and WilmerAI set up for it by ``init``.

with Scene("server.py", port=5000) as scene:
    scene.server.url                    # WilmerAI, with the models me:assistant, me:chat, me:memory
    scene.prompts("Uncle Bert")         # the system prompts that reached the model and say this
    scene.memories("kitchen")           # the files with memories of a conversation
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from Tests.addons.init.llm_servers import ollama
from Tests.backend_dialects import Answer, speak
from Tests.integration.launcher import PROJECT, Launcher, clean_environment
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, page_of

MODEL = "qwen3:8b"
TALK = (
    ("My kitchen is 3 metres long. Where does the sink go?", "Below the window, with 60 cm of worktop to its right."),
    ("I want an oak worktop.", "Oak is warm and can be sanded again. Oil it twice a year, and wipe off water."),
    ("And green doors.", "Sage green goes well with oak. Choose a matt surface; fingerprints show less."),
    ("Gas or induction?", "Induction: it is quick, easy to wipe, and needs no chimney. Ask for a 400 V connection."),
    ("I have 4000 euros for all of it.", "That is tight but possible if the old fridge stays. Spend it on the top."),
    ("Uncle Bert lays the tiles on 12 May.", "Then the cabinets should hang by 10 May, and the worktop comes last."),
    ("The old fridge stays.", "Good, that saves about 500 euros. Measure its door, it needs room to open."),
)
"""Messages of a person who plans a kitchen, and the answers. The memory is due with the seventh."""
TALK_LATER = ("When do the tiles come, and who lays them?", "Uncle Bert lays them on 12 May.")
TALK_MEMORY = (
    "The kitchen is 3 metres long and gets an oak worktop, green doors and an induction hob. The budget is "
    "4000 euros; Uncle Bert lays the tiles on 12 May."
)
TALE = (
    ("Thank you. My wounds hurt less already.", "*She lays a hand on your arm.* You ran far last night. Rest here."),
    ("What is this place?", "*She looks up into the leaves.* A glade that keeps out whatever means harm."),
    ("I lost my lantern in the forest.", "*She nods.* By the stream, perhaps. The foxes will have seen it."),
    ("My sister Ida waits for me in Millford.", "*Her eyes soften.* Then she must be worried. It is a day's walk."),
    ("Can you show me the way tomorrow?", "*She smiles.* At sunrise, as far as the old bridge."),
    ("I have no money to thank you with.", "*She laughs quietly.* Plant an oak when you are home. That is my price."),
    ("I promise it.", "*She takes your hand in both of hers.* Then the forest has heard it, too."),
)
"""The same in the glade of the character that comes with SillyTavern."""
TALE_LATER = (
    "What did I promise you, and where are we going?",
    "*She tilts her head.* An oak, planted at your home. And I take you to Millford, to your sister Ida.",
)
TALE_MEMORY = (
    "The traveller lost a lantern in the forest; the sister Ida waits in Millford, a day away. Seraphina "
    "will lead the way to the old bridge at sunrise."
)
_ANSWERS = (*TALK, TALK_LATER, *TALE, TALE_LATER)
TITLE = "Planning a small kitchen"
FOLLOW_UP = "Where do I put the lamps?"
_TASKS = {
    "title": {"title": TITLE},
    "tags": {"tags": ["kitchen", "home"]},
    "follow_ups": {"follow_ups": ["Which oil is good for oak?", "How high is a worktop?", FOLLOW_UP]},
}
_TASK = re.compile(r'JSON format: \{ "(\w+)"')
_PAGES = ollama(MODEL, running=(MODEL,))


class PretendOllama(StubBackend):
    """An Ollama with one model, whose answers are written down above, and a word of them each ``pace`` seconds."""

    pace = 0.03

    def respond(self, request: RecordedRequest) -> Reply:
        if request.path != "/api/chat":
            return page_of(_PAGES, request)
        messages = request.json["messages"]
        words = re.findall(r"\S+\s*", self.say(messages[0]["content"], messages[-1]["content"]))
        return speak(request, Answer(tokens=words), delay=self.pace)

    def say(self, system: str, asked: str) -> str:
        """The answer to a system prompt and the newest message."""
        return _say(system, asked)


def _say(system: str, asked: str) -> str:
    task = _TASK.search(asked) if asked.lstrip().startswith("### Task:") else None
    if task:
        return json.dumps(_TASKS.get(task[1], {}))
    if "keep notes" in system:
        return TALE_MEMORY if "Millford" in asked else TALK_MEMORY
    return next((answer for question, answer in _ANSWERS if asked.strip().endswith(question)), "Tell me more about it.")


class Scene:
    """The pretended Ollama, and WilmerAI on ``port`` as ``init`` sets it up; everything in a temporary folder."""

    def __init__(self, launcher: str, port: int, model: PretendOllama | None = None) -> None:
        self._launcher = launcher
        self._port = port
        self._stack = ExitStack()
        self.model = model or PretendOllama()
        self.folder = Path()
        self.server: Launcher

    def __enter__(self) -> Scene:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            stack.enter_context(self.model)
            self._init()
            arguments = ("--PublicDirectory", self.folder / "Public", "--port", str(self._port))
            self.server = stack.enter_context(Launcher(self._launcher, *arguments))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _init(self) -> None:
        configs = self.folder / "Public" / "Configs"
        configs.mkdir(parents=True)
        command = [
            sys.executable,
            str(PROJECT / "server.py"),
            "init",
            "--yes",
            "--backend",
            self.model.url,
            "--model",
            MODEL,
            "--ConfigDirectory",
            str(configs),
        ]
        subprocess.run(
            command, check=True, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def prompts(self, text: str) -> list[str]:
        """The system prompts that reached the model and contain a text."""
        first = [request.json["messages"][0] for request in self.model.requests if request.path == "/api/chat"]
        return [message["content"] for message in first if message["role"] == "system" and text in message["content"]]

    def memories(self, discussion: str) -> list[Path]:
        """The files of a conversation in which memories stand, by their paths below ``DiscussionIds``."""
        place = self.folder / "Public" / "DiscussionIds"
        return [
            file.relative_to(place)
            for file in place.rglob("memories.json")
            if file.parent.name == discussion and json.loads(file.read_text(encoding="utf-8"))
        ]
