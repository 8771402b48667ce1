"""From ``init`` to an answer: the real command, a real launcher with what it wrote, and a server that plays the LLM."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.addons.init import llm_servers
from Tests.free_ports import free_port
from Tests.integration.launcher import Launcher, run_launcher
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import until

WINDOW = 4096
SHIPPED = Path(__file__).resolve().parents[2] / "Public" / "Configs"
TITLE = (
    '### Task:\nGenerate a concise title.\n### Output:\nJSON format: { "title": "your title" }\n'
    "### Chat History:\n<chat_history>\nUSER: Hello\n</chat_history>"
)


class Model:
    """What the LLM says, by what it is asked for; and what it was asked."""

    def __init__(self) -> None:
        self.category = "CONVERSATION"
        self.prompts: list[tuple[str, str]] = []
        self.roles: list[str] = []
        self._lock = threading.Lock()

    def say(self, body: dict[str, Any]) -> str:
        system = "\n".join(text_of(message) for message in body["messages"] if message["role"] == "system")
        rest = "\n".join(text_of(message) for message in body["messages"] if message["role"] != "system")
        with self._lock:
            self.prompts.append((system, rest))
            self.roles.append("".join(message["role"][0] for message in body["messages"]))
        note = f"Odo owns a mill. He has {len(self.prompts)} cats."
        for known, answer in (
            ("sort messages for a dispatcher", self.category),
            ("keep notes", note),
            ("keep the summary", "Odo, a miller, lost his cat."),
            ("small tasks", "a title"),
            ("First make short notes", "use a loop"),
            ("First make a plan", "begin with rain"),
        ):
            if known in (rest if known.startswith("First") else system):
                return answer
        return "The answer."

    def asked(self, wanted: str, since: int = 0) -> list[tuple[str, str]]:
        with self._lock:
            return [prompt for prompt in self.prompts[since:] if wanted in prompt[0] + prompt[1]]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else json.dumps(content)


def streamed_texts(body: str) -> Iterator[str]:
    for line in body.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def backend(model: Model) -> Iterator[StubBackend]:
    with llm_servers.serving(llm_servers.llama_cpp(window=WINDOW), say=model.say) as backend:
        yield backend


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, backend: StubBackend) -> Path:
    folder = tmp_path_factory.mktemp("init") / "Public"
    done = run_launcher("server.py", "init", "--yes", "--backend", backend.url, "--PublicDirectory", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"server.py --PublicDirectory {folder}" in done.stdout
    return folder


@pytest.fixture(scope="module")
def server(public: Path) -> Iterator[Launcher]:
    with Launcher("run_waitress.py", "--PublicDirectory", public) as server:
        yield server


def ask(
    server: Launcher,
    text: str,
    model_id: str | None,
    system: str = "",
    history: int = 0,
    stream: bool = False,
    to_the_end: bool = False,
) -> str:
    """The answer to ``text`` after ``history`` rounds of an earlier conversation.

    ``to_the_end``: once the nodes after it have had their say, too.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for number in range(history):
        messages += [
            {"role": "user", "content": f"Question {number}."},
            {"role": "assistant", "content": f"Answer {number}."},
        ]
    body = {"messages": [*messages, {"role": "user", "content": text}], "stream": stream}
    response = server.request("POST", "/v1/chat/completions", {**body, "model": model_id} if model_id else body)
    assert response.status == 200, response.body
    if to_the_end:
        # The first node after the answer waits for a next message.
        line = re.compile(f"Request {response.headers['x-request-id']}: .*done after")
        assert until(lambda: bool(line.search(server.output())), 60)
    return response.body.decode("utf-8") if stream else response.text


def test_the_check_has_nothing_to_say(public: Path) -> None:
    done = run_launcher("server.py", "check", "--PublicDirectory", public, "--strict", "--online")
    assert done.returncode == 0
    assert "nothing wrong found" in done.stdout, done.stdout


def test_the_models_of_the_client(server: Launcher) -> None:
    listed = server.request("GET", "/v1/models").json["data"]
    assert [entry["id"] for entry in listed] == ["me:assistant", "me:chat", "me:memory"]


def test_the_server_starts_without_a_word_about_mistakes_or_the_demo(server: Launcher) -> None:
    server.wait_output("Listening on")
    ask(server, "Hello", "me:chat")
    output = server.output()
    assert "demo" not in output.lower() and "WARNING" not in output and "ERROR" not in output, output


@pytest.mark.parametrize("stream", [False, True])
def test_plain_chat_asks_once(server: Launcher, model: Model, stream: bool) -> None:
    since = len(model.prompts)
    assert "The answer." in ask(server, "Why is the sky blue?", "me:chat", "You are a pirate.", stream=stream)
    assert model.prompts[since:] == [("You are a pirate.", "Why is the sky blue?")]


@pytest.mark.parametrize("model_id", ["me:chat", "me:memory"])
def test_a_greeting_of_the_client_reaches_the_model(server: Launcher, model: Model, model_id: str) -> None:
    """In the system prompt: many models accept no conversation that begins with their own words."""
    since = len(model.prompts)
    body = {
        "model": model_id,
        "messages": [
            {"role": "system", "content": "You are Odo."},
            {"role": "assistant", "content": "Welcome to {my} mill!"},
            {"role": "user", "content": "Who are you?"},
        ],
    }
    assert server.request("POST", "/v1/chat/completions", body).text == "The answer."
    assert model.prompts[since:] == [
        (
            "You are Odo.\n\nThe conversation began with these words of yours:\n<opening>\n"
            "Welcome to {my} mill!\n</opening>",
            "Who are you?",
        )
    ]


def conversation(roles: str) -> list[dict[str, Any]]:
    """One message for each letter: system, user, assistant, or an assistant that was stopped before its first word."""
    names = {"s": "system", "u": "user", "a": "assistant", "-": "assistant"}
    return [
        {"role": names[role], "content": "" if role == "-" else f"{names[role]} {number}."}
        for number, role in enumerate(roles)
    ]


@pytest.mark.parametrize("model_id", ["me:chat", "me:assistant", "me:memory"])
def test_strict_chat_templates_accept_every_conversation(server: Launcher, model: Model, model_id: str) -> None:
    """As those of Gemma and Mistral: one system message at the beginning, then users and assistants in turn."""
    strict = re.compile("s?(ua)*u?")
    wrong = {}
    for roles in ("uau", "suau", "sau", "suu", "suaau", "su-u", "suasu", "sua", "ssu"):
        since = len(model.roles)
        answer = server.request("POST", "/v1/chat/completions", {"model": model_id, "messages": conversation(roles)})
        assert answer.text == "The answer.", answer.body
        sent = model.roles[since:]
        assert sent
        wrong.update((roles, found) for found in sent if not strict.fullmatch(found))
    assert not wrong


@pytest.mark.parametrize("model_id", ["me:assistant", "me", "gpt-4", None])
@pytest.mark.parametrize(
    "category, step",
    [
        ("CODING", "First make short notes"),
        ("Writing.", "First make a plan"),
        ("CONVERSATION", ""),
        ("I cannot say", ""),
        ("<think>Is it CODING? Or", ""),
        ("<think>CODING?</think>WRITING", "First make a plan"),
    ],
)
def test_the_assistant_takes_the_route_that_the_model_chooses(
    server: Launcher, model: Model, model_id: str | None, category: str, step: str
) -> None:
    since, model.category = len(model.prompts), category
    text = f"Please help me with {category} of {model_id}."
    assert ask(server, text, model_id) == "The answer."
    route, *others = model.prompts[since:]
    assert "CODING: programming" in route[0] + route[1]
    assert len(others) == (2 if step else 1)
    assert not step or step in others[0][1]
    # What a back-end has read for the plan, it need not read for the answer.
    assert len({system for system, _ in others}) == 1


def test_the_route_of_a_message_that_is_sent_again_is_remembered(server: Launcher, model: Model) -> None:
    since, model.category = len(model.prompts), "CODING"
    for _ in range(2):
        assert ask(server, "Please remember.", "me:assistant") == "The answer."
    assert ["CODING: programming" in system for system, _ in model.prompts[since:]] == [True, *[False] * 4]


def test_the_assistant_streams(server: Launcher, model: Model) -> None:
    model.category = "CODING"
    assert "The answer." in "".join(streamed_texts(ask(server, "Please stream.", "me:assistant", stream=True)))


def test_what_open_webui_asks_on_its_own_is_not_routed(server: Launcher, model: Model) -> None:
    since = len(model.prompts)
    assert ask(server, TITLE, "me:assistant") == "a title"
    assert len(model.prompts) == since + 1


@pytest.mark.parametrize("model_id", ["me:memory", "me:assistant"])
def test_a_conversation_with_an_id_is_remembered(server: Launcher, model: Model, public: Path, model_id: str) -> None:
    model.category = "CONVERSATION"
    name = model_id.replace(":", "-")
    system = f"[DiscussionId]{name}[/DiscussionId]Be brief."
    begun = len(model.prompts)
    for rounds in (3, 12, 18):
        ask(server, "And now?", model_id, system, history=rounds, to_the_end=True)
    folder = next(path for path in (public / "DiscussionIds").iterdir() if path.name == name)
    file = folder / "chat_summary.json"
    assert "Odo owns a mill." in (folder / "memories.json").read_text("utf-8")
    # It takes the memories as they are as long as it is short.
    assert "Odo owns a mill." in file.read_text("utf-8") and not model.asked("keep the summary", begun)
    [summary] = json.loads(file.read_text("utf-8"))
    summary["text_block"] = "\n".join(f"Sack {number} is full." for number in range(120))
    file.write_text(json.dumps([summary]), encoding="utf-8")
    for rounds in (28, 38):
        ask(server, "And now?", model_id, system, history=rounds, to_the_end=True)
    [(_, asked)] = model.asked("keep the summary", begun)
    assert "Sack 0 is full." in asked and "Sack 119 is full." not in asked
    text = json.loads(file.read_text("utf-8"))[0]["text_block"]
    assert text.startswith("Odo, a miller, lost his cat.\n") and re.search("Sack 119 is full.\nHe has .* cats.", text)
    since = len(model.prompts)
    ask(server, "Who owns the mill?", model_id, system, history=39)
    [(prompt, sent)] = model.asked("<summary>", since)
    assert prompt.startswith("Be brief.") and "DiscussionId" not in prompt + sent
    assert prompt == "Be brief."
    assert "Odo owns a mill." in sent and "Odo, a miller, lost his cat." in sent
    newest = sent.rpartition("Answer 38.")[2]
    assert newest.startswith("\nYou remember:") and newest.endswith("Who owns the mill?")


def test_without_an_id_nothing_is_kept(server: Launcher, model: Model, public: Path) -> None:
    def files() -> list[Path]:
        # SQLite's own come and go with connections.
        return sorted(
            path for path in (public / "DiscussionIds").rglob("*") if not path.name.endswith(("-wal", "-shm"))
        )

    kept, since = files(), len(model.prompts)
    assert ask(server, "And now?", "me:memory", history=20, to_the_end=True) == "The answer."
    assert files() == kept
    assert len(model.prompts) == since + 1 and "<summary>" not in model.prompts[-1][0]


def test_a_long_chat_is_cut_to_the_window_and_begins_with_the_user(server: Launcher, backend: StubBackend) -> None:
    """Some models refuse a conversation with another beginning."""
    for model_id in ("me:chat", "me:memory", "me:assistant"):
        ask(server, "The last words. " + "word " * 100, model_id, history=400)
        sent = json.loads(backend.requests[-1].body)["messages"]
        turns = [message for message in sent if message["role"] != "system"]
        assert turns[0]["role"] == "user" and 3 <= len(turns) < 400
        assert sum(len(text_of(message)) for message in sent) < WINDOW * 4


# -- without an answer -------------------------------------------------------------------------------------------------


def test_where_no_server_is(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = run_launcher("server.py", "init", "--yes", "--backend", address, "--PublicDirectory", tmp_path / "Public")
    assert done.returncode == 1
    assert re.search(r"nothing runs there", done.stdout) and "ERROR: No LLM server was found" in done.stderr
    assert not (tmp_path / "Public").exists()


def test_a_wilmer_that_runs_is_no_back_end(server: Launcher, tmp_path: Path) -> None:
    done = run_launcher("server.py", "init", "--yes", "--backend", server.url, "--PublicDirectory", tmp_path / "Public")
    assert done.returncode == 1
    assert "is a WilmerAI itself" in done.stdout
    assert not (tmp_path / "Public").exists()


def test_a_second_run_changes_nothing(public: Path, backend: StubBackend) -> None:
    before = {path: path.read_bytes() for path in (public / "Configs").rglob("*") if path.is_file()}
    done = run_launcher("run_waitress.py", "init", "--yes", "--backend", backend.url, "--PublicDirectory", public)
    assert done.returncode == 1
    assert "There is a user 'me' already" in done.stderr
    assert {path: path.read_bytes() for path in (public / "Configs").rglob("*") if path.is_file()} == before


def turns(*texts: str) -> str:
    """A conversation as Gemma was trained on it: no turn of the system, and the model's turn open at the end."""
    sides = ("user", "model")
    closed = "".join(f"<start_of_turn>{sides[number % 2]}\n{text}<end_of_turn>\n" for number, text in enumerate(texts))
    # White space at both ends of a text is never sent.
    return f"{closed}<start_of_turn>model" if len(texts) % 2 else closed.removesuffix("<end_of_turn>\n")


def test_a_server_that_takes_one_text_gets_whole_turns(tmp_path: Path) -> None:
    prompts: list[str] = []

    def say(body: dict[str, Any]) -> str:
        prompts.append(body["prompt"])
        return "CODING" if "sort messages" in body["prompt"] else "Because."

    with llm_servers.serving(llm_servers.llama_cpp(window=WINDOW), say=say) as backend:
        public = tmp_path / "Public"
        run_launcher("server.py", "init", "--yes", "--backend", backend.url, "--PublicDirectory", public)
        for name in ("Main", "Worker"):
            path = public / f"Configs/Endpoints/me/{name}.json"
            endpoint = {
                **json.loads(path.read_text(encoding="utf-8")),
                "apiTypeConfigFileName": "KoboldCpp",
                "promptTemplate": "gemma",
                "presetSamplers": {},
            }
            path.write_text(json.dumps(endpoint), encoding="utf-8")
        for kind, name in (("ApiTypes", "KoboldCpp"), ("PromptTemplates", "gemma")):
            source = SHIPPED / kind / f"{name}.json"
            (public / f"Configs/{kind}/{name}.json").write_bytes(source.read_bytes())
        with Launcher("run_waitress.py", "--PublicDirectory", public) as server:

            def sent(model_id: str, *messages: tuple[str, str]) -> list[str]:
                prompts.clear()
                body = {"model": model_id, "messages": [{"role": role, "content": text} for role, text in messages]}
                answer = server.request("POST", "/v1/chat/completions", body)
                assert answer.text == "Because.", answer.body
                return prompts

            system, first, question = ("system", "You are Odo."), ("user", "Why?"), ("user", "Really?")
            assert sent("me:chat", system, first) == [turns("You are Odo.\n\nWhy?")]
            assert sent("me:chat", system, first, ("assistant", "So."), question) == [
                turns("You are Odo.\n\nWhy?", "So.", "Really?")
            ]
            assert sent("me:chat", system, first, ("assistant", ""), question) == [
                turns("You are Odo.\n\nWhy?\n\nReally?")
            ]
            assert sent("me:chat", system, first, ("assistant", "So")) == [turns("You are Odo.\n\nWhy?", "So")]
            route, notes, answer = sent("me:assistant", system, first)
            assert route.startswith("<start_of_turn>user\nYou do small jobs for an assistant")
            for prompt, beginning, end in (
                (notes, "Why?", "the finished code."),
                (answer, "These are your notes", "try it."),
            ):
                assert prompt.startswith(f"<start_of_turn>user\nYou are Odo.\n\n{beginning}"), prompt
                assert prompt.endswith(f"{end}<end_of_turn>\n<start_of_turn>model"), prompt
                assert prompt.count("<start_of_turn>") == 2
            (remembered,) = sent("me:memory", system, first)
            assert remembered == turns("You are Odo.\n\nWhy?")
