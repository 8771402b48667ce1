"""A compactor that follows edits, over real sockets: a long chat, edits, a branch, a return, and another start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, ConfigTree, Launcher
from Tests.integration.test_following_memories import Model as MemoryModel
from Tests.integration.test_following_memories import said, tree_of
from Tests.stub_backend import RecordedRequest, Reply, chat_answer

pytestmark = pytest.mark.slow

KINDS = ("OLD ", "BLOCK ", "FOLD ")


class Model(MemoryModel):
    """Sums up by naming all messages again."""

    def respond(self, request: RecordedRequest) -> Reply:
        text = str(request.json["messages"][-1]["content"])
        if text.startswith(KINDS):
            self.made.append(text)
            assert request.json["stream"] is True
            return chat_answer(request, " ".join(re.findall(r"[mnx]\d+\.", text)))
        return super().respond(request)


def compacting(tree: ConfigTree) -> None:
    tree.write(
        f"Users/{USER}.json", {"chatPromptTemplateName": "_chatonly", "contextCompactorSettingsFile": "Compactor"}
    )
    tree.write(
        f"Workflows/{USER}/Compactor.json",
        {
            "endpointName": "Main",
            "preset": "Plain",
            "recentContextTokens": 60,
            "oldContextTokens": 60,
            "oldSectionPrompt": "OLD [MESSAGES_TO_SUMMARIZE]",
            "neutralSummaryPrompt": "BLOCK [MESSAGES_TO_SUMMARIZE]",
            "oldestUpdatePrompt": "FOLD [EXISTING_SUMMARY] [NEW_CONTENT]",
            "followEdits": True,
        },
    )
    tags = ("context_compactor_oldest", "context_compactor_old")
    tree.private(
        "_DefaultWorkflow",
        {"title": "Compact", "type": "ContextCompactor"},
        *[
            {"title": tag, "type": "TagTextExtractor", "tagToExtractFrom": "{agent1Output}", "fieldToExtract": tag}
            for tag in tags
        ],
        {
            "title": "Answer",
            "type": "Standard",
            "endpointName": "Main",
            "preset": "Plain",
            "maxResponseSizeInTokens": 200,
            "systemPrompt": "OLDEST {agent2Output} OLD {agent3Output} END",
            "returnToUser": True,
        },
    )


def words(first: int, last: int, letter: str = "m") -> list[str]:
    return [f"{letter}{number}. was said at the old mill by the river then" for number in range(first, last + 1)]


def names(texts: list[str]) -> list[str]:
    return [text.split()[0] for text in texts]


def test_summaries_follow_a_long_chat(tmp_path: Path) -> None:
    with Model() as model:
        tree = tree_of(tmp_path / "Public", model.url)
        compacting(tree)
        arguments = ("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER)
        with Launcher(*arguments) as server:

            def send(texts: list[str], server: Launcher = server) -> int:
                """A message of the client, and the number of calls for it; nothing is missing, false or twice."""
                before = len(model.made)
                answer = server.request("POST", "/v1/chat/completions", {"model": "x", "messages": said(*texts)})
                assert answer.status == 200
                shown, expected = re.findall(r"[mnx]\d+\.", model.shown[-1]), names(texts)
                # The rest is sent as it is: all of Recent, and the newest five.
                assert shown == expected[: len(shown)] and len(texts) - len(shown) < 12
                return len(model.made) - before

            whole = words(0, 80)
            counts = [send(whole) for _ in range(18)]
            assert max(counts) == 3 and counts[-1] == 0
            for count in range(83, 91, 2):
                assert send(words(0, count - 1)) <= 3
            whole = words(0, 88)
            edited = [*whole[:7], *words(7, 7, "x"), *whole[8:]]
            assert send(edited) == 3  # its block, twelve blocks, and all
            assert send([*edited, *words(89, 90)]) <= 3
            # A branch, the old one again, and the edited one: without a call.
            branch = [*whole[:50], *words(50, 69, "n")]
            assert sum(send(branch) for _ in range(3)) > 0
            assert [send(texts) for texts in (whole, edited, branch, whole)] == [0, 0, 0, 0]
            assert len(model.made) == len(set(model.made))
        with Launcher(*arguments) as again:
            assert [send(texts, again) for texts in (edited, whole)] == [0, 0]
