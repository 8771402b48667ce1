"""The coding agents as clients: headless, in a git repository of their own, with the settings that the manual names.

Each has the same task. ``Agent.script`` is the LLM that has it done in three steps with the tools of that agent. It
knows from the request alone how far the agent is, so that a repeated request changes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from Tests.backend_dialects import Answer, Call, speak
from Tests.clients.client import KEY
from Tests.integration.launcher import PROJECT, USER, clean_environment, home_environment
from Tests.stub_backend import RecordedRequest, Reply

NPM_FOLDER = Path(__file__).with_name("agents") / "node_modules"
AIDER = PROJECT / "venv-agents" / ("Scripts" if sys.platform == "win32" else "bin") / "aider"
# A machine with a load of twenty took 75 s to start the slowest and let it say one word.
RUN_SECONDS = 240.0
LEAVE_SECONDS = 20.0
CONTEXT = 65536
# Before the first token of the first step. Longer than the five seconds after which it gets a heartbeat.
SILENCE_SECONDS = 5.5
# A port that nothing listens on: what an agent asks of the internet fails at once.
NOWHERE = "http://127.0.0.1:9"
SOURCE, TARGET, LINE = "notes.txt", "copy.txt", "The snow in Tromsø is deep."
DONE = "The first line is copied."
TITLE = "Copying a line"


class AgentRun:
    """A started agent. ``output`` has all that it said once it has ended."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.output = ""
        self._log = folder.parent / "output.txt"
        # A group of its own: Ctrl-C in a terminal reaches the agent's children as well.
        group: dict[str, Any] = (
            {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
            if sys.platform == "win32"
            else {"start_new_session": True}
        )
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **group,
            )

    def wait(self, seconds: float = RUN_SECONDS) -> AgentRun:
        try:
            self.process.wait(seconds)
        finally:
            self.end()
        return self

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        if sys.platform == "win32":
            self.process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        """End it if it still runs, and read what it said."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(LEAVE_SECONDS)
        self.output = self._log.read_text(encoding="utf-8", errors="replace")


class Agent:
    """A coding agent in a fresh repository below ``folder``, connected to the server at ``url``.

    Attributes:
        program: the file that is started.
        instructions: the file of the repository that the agent adds to every conversation.
        uses_tools: it offers tools to the LLM; ``calls`` are those that do the task.
    """

    program: ClassVar[Path]
    instructions: ClassVar[str] = "AGENTS.md"
    uses_tools: ClassVar[bool] = True

    def __init__(self, folder: Path, url: str, model: str = USER) -> None:
        self.url, self.model = url, model
        self.repository, self.home = folder / "repository", folder / "home"
        self.repository.mkdir(parents=True)
        self.home.mkdir()
        self._write(SOURCE, f"{LINE}\nAnother line.\n")

    @classmethod
    def missing(cls) -> str:
        """Say why the agent cannot be tested here; ``""`` if it can."""
        if shutil.which("git") is None:
            return "git is not installed"
        return "" if cls.program.exists() else f"{cls.program.name} is not installed"

    def start(self, task: str, discussion: str) -> AgentRun:
        """Give it the task. ``discussion`` names the conversation for memories."""
        self._write(self.instructions, f"[DiscussionId]{discussion}[/DiscussionId]Be brief.\n")
        self.configure()
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
            subprocess.run(["git", *arguments], cwd=self.repository, env=self._environment(), check=True)
        return AgentRun(
            [str(self.program), *self.arguments(task)], self.repository, {**self._environment(), **self.variables()}
        )

    def result(self) -> str:
        """What the agent has written for the task; ``""`` if it has not."""
        file = self.repository / TARGET
        return file.read_text(encoding="utf-8").strip() if file.exists() else ""

    def configure(self) -> None:
        """Write the agent's settings."""

    def arguments(self, task: str) -> list[str]:
        raise NotImplementedError

    def variables(self) -> dict[str, str]:
        """The environment variables that connect it."""
        return {}

    def calls(self) -> tuple[Call, ...]:
        """What the LLM calls for the task, one call a step."""
        raise NotImplementedError

    def script(self, request: RecordedRequest) -> Reply:
        """The LLM: the next call while there is one, then a last word."""
        body = request.json
        calls = self.calls()
        done = sum(message["role"] == "tool" for message in body["messages"])
        if not body.get("tools"):
            answer = Answer((TITLE,))
        elif done < len(calls):
            answer = Answer(("I go ", "on."), "tool_calls", calls=(calls[done],))
        else:
            answer = Answer((DONE,))
        return self.says(answer, request, done == 0 and bool(body.get("tools")))

    @staticmethod
    def says(answer: Answer, request: RecordedRequest, first: bool) -> Reply:
        """That answer; before the ``first`` there is a silence."""
        return speak(request, answer, header_delay=SILENCE_SECONDS if first else 0.0)

    def _write(self, name: str, text: str) -> None:
        (self.repository / name).write_text(text, encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        """Nothing of the person who runs the tests, and no way out of this machine."""
        names = {
            "GIT_AUTHOR_NAME": "Ann",
            "GIT_AUTHOR_EMAIL": "ann@example.com",
            "GIT_COMMITTER_NAME": "Ann",
            "GIT_COMMITTER_EMAIL": "ann@example.com",
        }
        kept = {
            name: value
            for name, value in clean_environment().items()
            if not name.upper().startswith(
                ("OPENAI", "ANTHROPIC", "CLAUDE", "CODEX", "OPENCODE", "AIDER", "LITELLM", "XDG", "GIT")
            )
        }
        # PWD: opencode takes it for the folder to work in.
        return {
            **kept,
            **names,
            **home_environment(self.home),
            "PWD": str(self.repository),
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1,localhost",
        }


def npm_program(name: str) -> Path:
    return NPM_FOLDER / ".bin" / (f"{name}.cmd" if sys.platform == "win32" else name)


class Codex(Agent):
    """Codex CLI, which knows the Responses API only."""

    program = npm_program("codex")

    def configure(self) -> None:
        folder = self.home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(
            f"""\
model = "{self.model}"
model_provider = "wilmer"
model_context_window = {CONTEXT}

[model_providers.wilmer]
name = "WilmerAI"
base_url = "{self.url}/v1"
wire_api = "responses"
env_key = "WILMER_KEY"
""",
            encoding="utf-8",
        )

    def arguments(self, task: str) -> list[str]:
        return ["exec", "--sandbox", "danger-full-access", task]

    def variables(self) -> dict[str, str]:
        return {"WILMER_KEY": KEY}

    def calls(self) -> tuple[Call, ...]:
        commands = f"cat {SOURCE}", f"head -n 1 {SOURCE} > {TARGET}", f"cat {TARGET}"
        return tuple(Call("exec_command", {"cmd": text}, f"call_{number}") for number, text in enumerate(commands))


class ClaudeCode(Agent):
    """Claude Code, which knows the Messages API only."""

    program = npm_program("claude")
    instructions = "CLAUDE.md"

    def arguments(self, task: str) -> list[str]:
        return ["-p", task, "--allowedTools", "Read,Write,Bash"]

    def variables(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "ANTHROPIC_MODEL": self.model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": self.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT),
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
        }

    def calls(self) -> tuple[Call, ...]:
        source, target = str(self.repository / SOURCE), str(self.repository / TARGET)
        return (
            Call("Read", {"file_path": source}, "call_0"),
            Call("Write", {"file_path": target, "content": LINE}, "call_1"),
            Call("Bash", {"command": f"cat {TARGET}"}, "call_2"),
        )


class OpenCode(Agent):
    """opencode over the chat API."""

    program = npm_program("opencode")
    package = "@ai-sdk/openai-compatible"

    def configure(self) -> None:
        self._write(
            "opencode.json",
            json.dumps(
                {
                    "provider": {
                        "wilmer": {
                            "npm": self.package,
                            "name": "WilmerAI",
                            "options": {"baseURL": f"{self.url}/v1", "apiKey": KEY},
                            "models": {self.model: {"name": self.model, "limit": {"context": CONTEXT, "output": 4096}}},
                        }
                    },
                    "model": f"wilmer/{self.model}",
                    "autoupdate": False,
                    "share": "disabled",
                }
            ),
        )

    def arguments(self, task: str) -> list[str]:
        return ["run", "--auto", task]

    def variables(self) -> dict[str, str]:
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1"}

    def calls(self) -> tuple[Call, ...]:
        source, target = str(self.repository / SOURCE), str(self.repository / TARGET)
        return (
            Call("read", {"filePath": source}, "call_0"),
            Call("write", {"filePath": target, "content": LINE}, "call_1"),
            Call("bash", {"command": f"cat {TARGET}", "description": "Show the copy"}, "call_2"),
        )


class OpenCodeResponses(OpenCode):
    """opencode over the Responses API."""

    package = "@ai-sdk/openai"


class OpenCodeMessages(OpenCode):
    """opencode over the Messages API."""

    package = "@ai-sdk/anthropic"


class Aider(Agent):
    """aider, which offers no tools: the LLM names a file to read, writes one, and mends it after a failing test."""

    program = AIDER
    instructions = "CONVENTIONS.md"
    uses_tools = False
    WRONG = "Nothing."

    def arguments(self, task: str) -> list[str]:
        check = f'"{sys.executable}" check.py'
        return [
            "--model",
            f"openai/{self.model}",
            "--message",
            task,
            "--read",
            self.instructions,
            "--yes-always",
            "--auto-test",
            "--test-cmd",
            check,
            "--no-check-update",
            "--analytics-disable",
            "--no-show-model-warnings",
            "--no-gitignore",
            "--no-pretty",
        ]

    def configure(self) -> None:
        self._write(
            "check.py",
            f"""\
text = open({TARGET!r}, encoding="utf-8").read().strip()
if text != {LINE!r}:
    raise SystemExit("The copy is wrong")
""",
        )

    def variables(self) -> dict[str, str]:
        return {"OPENAI_API_BASE": f"{self.url}/v1", "OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def script(self, request: RecordedRequest) -> Reply:
        body = request.json
        said = "\n".join(str(message["content"]) for message in body["messages"])
        if "commit message" in said.lower():
            text = "Copy the first line"
        elif LINE not in said:
            text = f"I need to see {SOURCE} first."
        else:
            content = LINE if "The copy is wrong" in said else self.WRONG
            text = f"{DONE}\n\n{TARGET}\n```\n{content}\n```\n"
        return self.says(Answer(text.splitlines(keepends=True)), request, LINE not in said)


AGENTS: Mapping[str, type[Agent]] = {
    "codex": Codex,
    "claude-code": ClaudeCode,
    "opencode": OpenCode,
    "opencode-responses": OpenCodeResponses,
    "opencode-messages": OpenCodeMessages,
    "aider": Aider,
}
