"""The tests of the documentation find what is wrong: each mistake here, in a page of a few lines, is reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from Tests.docs.blocks import BlockError, blocks, judged, whole_files
from Tests.docs.checking import Checker
from Tests.docs.commands import problems
from Tests.docs.links import Links
from Tests.docs.markdown import Page, slug
from Tests.docs.running import Runner, examples, helpers, name_of
from Tests.windows import tells_capitals_apart

FILE = "file=Workflows/me/greeting/_DefaultWorkflow.json"
NODE = {
    "title": "Answer",
    "type": "Standard",
    "endpointName": "Main",
    "systemPrompt": "Greet.",
    "prompt": "",
    "maxResponseSizeInTokens": 100,
    "returnToUser": True,
}
TEXT = {"title": "Text", "type": "StaticResponse", "content": "x"}
GOOD = {"nodes": [NODE]}


def page(mark: str, content: Any, above: str = "", name: str = "Docs/page.md") -> Page:
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    return Page(name, f"# A page\n\n{above}\n\n```json {mark}\n{text}\n```\n")


def complaints(checker: Checker, made: Page) -> str:
    """What is wrong with the blocks of a page, all in one text."""
    files, python = whole_files(made), list(blocks(made, "python"))
    return "\n".join(text for block in blocks(made) for text in checker.complaints(judged(block), files, python))


# -- what a page consists of -------------------------------------------------------------------------------------------

SAMPLE = Page(
    "Docs/sample.md",
    """# One `Two`: three_four!

Text with `inline
code` and [a link
over lines](other.md#place "title"), `[no](link)`.

## Again
## Again

<!-- try: {"expect":
  "x"} -->

   ```json node extra
   {"a": 1}

   ```
<!-- lonely --> words

~~~
[no](link) ```
~~~
![picture](../images/a.svg) and <img src="b.png" alt="b">, <a id="Own"></a>
[ref]: third.md
""",
)


def test_a_page_is_taken_apart() -> None:
    assert [(fence.line, fence.info, fence.text) for fence in SAMPLE.fences] == [
        (13, "json node extra", '{"a": 1}\n\n'),
        (19, "", "[no](link) ```\n"),
    ]
    assert SAMPLE.fences[0].comments == ('try: {"expect":\n  "x"}',) and SAMPLE.fences[1].comments == ()
    assert [(code.line, code.text) for code in SAMPLE.codes][1:] == [(3, "inline code"), (5, "[no](link)")]
    assert [(link.line, link.target, link.is_image) for link in SAMPLE.links] == [
        (5, "other.md#place", False),
        (22, "../images/a.svg", True),
        (22, "b.png", True),
        (23, "third.md", False),
    ]
    assert SAMPLE.anchors == {"one-two-three_four", "again", "again-1", "Own"}


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Keys of `both`", "keys-of-both"),
        ("What's new, and why?", "whats-new-and-why"),
        ("A / B - C", "a--b---c"),
        ("[Link](x.md) here", "link-here"),
        ("`<user>` file", "user-file"),
        ("Größe", "größe"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ("", "does not say what it is"),
        ("example", "'example' is no mark"),
        ("node wire", "one mark is enough"),
        ("part=nod", "part=nod is no kind"),
        ("file=Elsewhere/a.json", "is no path of a configuration file"),
        ("nodes", "'nodes' is no mark"),
        ("file", "'file' is no mark"),
    ],
)
def test_a_block_that_does_not_say_what_it_is(mark: str, told: str) -> None:
    block = next(blocks(page(mark, {})))
    with pytest.raises(BlockError, match=rf"^Docs/page\.md:5: .*{told}"):
        judged(block)


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("{'a': 1}", "is no JSON"),
        ('{"expects": "x"}', "unknown keys: expects"),
        ('{"requests": [{"reply": "x"}]}', "unknown keys: reply"),
    ],
)
def test_a_comment_that_is_not_understood(comment: str, told: str) -> None:
    block = next(blocks(page(FILE, GOOD, f"<!-- try: {comment} -->")))
    with pytest.raises(BlockError, match=told):
        judged(block)


@pytest.mark.parametrize("mark", ["wire", "other", "node", "part=user", FILE])
def test_broken_json(mark: str, checker: Checker) -> None:
    with pytest.raises(BlockError, match=r"^Docs/page\.md:7: not valid JSON"):
        complaints(checker, page(mark, '{"a": 1,\n "b" 2}'))


@pytest.mark.parametrize(
    ("mark", "content"),
    [
        (FILE, GOOD),
        ("node", NODE),
        ("node", '{"type": "StaticResponse", "content": "{agent2Output}"}'),
        ("node", f"{json.dumps(NODE)},\n{json.dumps(TEXT)},"),
        ("part=user", '"port": 5001,'),
        ("part=user", '{"port": 5001}'),
        ("part=endpoint", {"maxContextTokenSize": 4096}),
        ("wire", {"model": "x"}),
        ("other", [1]),
        ("part=workflow", {"nodes": [NODE], "style": "short"}),
    ],
)
def test_what_is_right(mark: str, content: Any, checker: Checker) -> None:
    assert complaints(checker, page(mark, content)) == ""


@pytest.mark.parametrize(
    ("mark", "content", "told"),
    [
        (
            FILE,
            {"nodes": [{**NODE, "endpointName": "Mian"}]},
            r"page\.md:11: error: nodes\[0\]\.endpointName: .*'Main'",
        ),
        (FILE, {"nodes": [{**NODE, "sytemPrompt": "x"}]}, "sytemPrompt"),
        ("node", {**NODE, "type": "Standart"}, r"page\.md:5: warning: nodes\[0\]\.type: .*Standart"),
        ("node", {**NODE, "prompt": "{agent2Ouput}"}, "agent2Ouput"),
        ("part=user", '"port": "five",', r"page\.md:5: port: "),
        ("part=user", '"prot": 5000', "'prot' is unknown"),
        ("part=endpoint", {"maxContextTokenSize": "large"}, "maxContextTokenSize"),
        ("part=workflow", {"nodes": [{**NODE, "type": "Standart"}]}, "Standart"),
        ("file=Endpoints/me/Other.json", {"endpoint": "127.0.0.1", "apiTypeConfigFileName": "Nothing"}, "Nothing"),
        ("file=Users/me.json", {"endpointConfigsSubDirectory": "nowhere"}, "nowhere"),
    ],
)
def test_what_the_check_finds(mark: str, content: Any, told: str, checker: Checker) -> None:
    assert re.search(told, found := complaints(checker, page(mark, content))), found


def test_files_of_a_page_are_there_together_and_gone_afterwards(checker: Checker) -> None:
    child = {"title": "Child", "type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}
    parent = page(FILE, {"nodes": [child]})
    assert "workflow 'Child' does not exist" in complaints(checker, parent)
    both = Page("Docs/both.md", parent.source + f"\n```json file=Workflows/me/Child.json\n{json.dumps(GOOD)}\n```\n")
    assert complaints(checker, both) == ""
    assert "workflow 'Child' does not exist" in complaints(checker, Page("Docs/later.md", parent.source))


def test_a_script_of_a_page_is_where_the_workflow_names_it(checker: Checker) -> None:
    node = {"type": "PythonModule", "module_path": "/scripts/roll.py", "args": [], "title": "Roll"}
    script = "\n```python file=/scripts/roll.py\ndef Invoke():\n    return 4\n```\n"
    alone = page("node", node)
    assert "roll.py" in complaints(checker, alone)
    assert complaints(checker, Page("Docs/page.md", alone.source + script)) == ""


# -- runs --------------------------------------------------------------------------------------------------------------


def tried(runner: Runner, *made: Page) -> list[list[str]]:
    """What is wrong with the examples of pages, in order."""
    wanted = [example for each in made for example in examples(each)]
    runner.run(wanted)
    return [runner.results[example.block.place] for example in wanted]


def comment(**how: Any) -> str:
    return f"<!-- try: {json.dumps(how)} -->"


def test_answers_are_compared(runner: Runner) -> None:
    said = {"replies": {"Greet.": "Good day to you."}}
    right = page(FILE, GOOD, comment(**said, expect="Good day", sent="Greet.", lacks="night"), name="right.md")
    results = tried(
        runner,
        right,
        page(FILE, GOOD, comment(**said, expect=["Good", "night"]), name="expect.md"),
        page(FILE, GOOD, comment(**said, lacks="day"), name="lacks.md"),
        page(FILE, GOOD, comment(**said, sent="Dance."), name="sent.md"),
        page(FILE, GOOD, comment(requests=[{"expect": "Reply 1 to: Hello"}, {"expect": "Reply 1"}]), name="second.md"),
        page(FILE, GOOD, comment(expect="Reply 1 to: Hello", stream=True), name="default.md"),
        page(FILE, GOOD, comment(replies={"Greet": {"status": 400}}, expect="x"), name="fails.md"),
        page(FILE, GOOD, comment(**said, writes={"~/note.txt": "x"}), name="writes.md"),
    )
    told = ["\n".join(result) for result in results]
    assert told[0] == "" and told[5] == ""
    assert told[1].startswith("expect.md:5: the answer lacks 'night': 'Good day to you.'")
    assert told[2].startswith("lacks.md:5: the answer has 'day'") and told[3].startswith("sent.md:5: no prompt has")
    assert told[4].startswith("second.md:5: request 2: the answer lacks 'Reply 1'")
    assert told[6].startswith("fails.md:5: the answer is an error") and "~/note.txt has None" in told[7]


def test_pages_that_have_the_same_file_each_have_their_own(runner: Runner) -> None:
    made = [
        page(
            FILE,
            {"nodes": [{**NODE, "systemPrompt": f"Number {number}."}]},
            comment(replies={f"Number {number}.": f"I am {number}."}, expect=f"I am {number}."),
            name=f"{number}.md",
        )
        for number in range(2)
    ]
    assert tried(runner, *made) == [[], []]


def test_a_warning_in_the_log_is_a_mistake_unless_it_is_expected(runner: Runner) -> None:
    node = {**NODE, "prompt": "{nothing_of_this_name}"}
    silent = page(FILE, {"nodes": [node]}, comment(sent="Greet."), name="silent.md")
    (result,) = tried(runner, silent)
    assert result and "the log: " in result[0] and "nothing_of_this_name" in "\n".join(result)
    told = page("file=Workflows/me/other/_DefaultWorkflow.json", GOOD, comment(log="something"), name="told.md")
    assert tried(runner, told) == [["told.md:5: the log does not warn of 'something'"]]


def test_every_server_is_the_fake_one(runner: Runner) -> None:
    endpoint = {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "KoboldCpp", "maxContextTokenSize": 4096}
    fetch = {
        "title": "Fetch",
        "type": "WebFetch",
        "url": "https://weather.example.net/today?x=1",
        "allowedHosts": ["weather.example.net"],
        "blockPrivateAddresses": True,
    }
    tool = {"title": "Tool", "type": "MCPToolCall", "server": "notes", "tool": "read", "arguments": {}}
    file = {"title": "Read", "type": "GetCustomFile", "filepath": "/srv/notes/a.txt"}
    answer = {**NODE, "endpointName": "Own", "systemPrompt": "{agent1Output} {agent2Output} {agent3Output}"}
    made = Page(
        "all.md",
        "\n\n".join(
            [
                f"```json file=Endpoints/me/Own.json\n{json.dumps(endpoint)}\n```",
                '```json file=MCPServers/notes.json\n{"transport": "streamable_http", "url": "http://127.0.0.1:1/mcp"}\n```',
                comment(
                    web={"https://weather.example.net/today": "It rains."},
                    mcp={"notes.read": "Buy tea."},
                    files={"/srv/notes/a.txt": "The file."},
                    replies={"It rains. Buy tea. The file.": "All there."},
                    expect="All there.",
                ),
                f"```json {FILE}\n{json.dumps({'nodes': [fetch, tool, file, answer]})}\n```",
            ]
        ),
    )
    assert tried(runner, made) == [[]]


def test_a_workflow_that_another_one_runs_is_not_asked_itself() -> None:
    child = {"title": "Child", "type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}
    made = Page(
        "both.md",
        f"```json {FILE}\n{json.dumps({'nodes': [child]})}\n```\n\n"
        f"```json file=Workflows/me/Child.json\n{json.dumps(GOOD)}\n```\n",
    )
    assert [example.block.place for example in examples(made)] == ["both.md:1"]
    assert [name_of(block) for block in helpers(made)] == ["Child"]


def test_what_ran_is_known(runner: Runner) -> None:
    def conditional(when: str) -> Page:
        node = {
            "title": "Choose",
            "type": "ConditionalCustomWorkflow",
            "conditionalKey": "{chat_user_prompt_last_one}",
            "conditionalWorkflows": {"Hello": "Child", "Default": "Other"},
            "returnToUser": True,
        }
        files = {"Child": GOOD, "Other": GOOD}
        text = "\n\n".join(
            f"```json file=Workflows/me/{name}.json\n{json.dumps(content)}\n```" for name, content in files.items()
        )
        return Page(
            f"{when}.md",
            f"{text}\n\n{comment(messages=[{'role': 'user', 'content': when}])}\n"
            f"```json {FILE}\n{json.dumps({'nodes': [node]})}\n```\n",
        )

    assert tried(runner, conditional("Hello")) == [[]]
    assert "Child" in runner.ran["Hello.md"] and "Other" not in runner.ran["Hello.md"]


# -- links and commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def links(tmp_path: Path) -> Links:
    pages = {
        "README.md": "# Top\n[a](Docs/a.md#here) [gone](Docs/gone.md) [case](docs/a.md)\n",
        "Docs/a.md": "# Here\n[up](../README.md#top) [wrong](#there) [out](../../x.md) ![big](big.png) "
        "`Scripts/no.py`\n"
        "[web](https://example.com/x) ![far](https://example.com/x.png) `Docs/a.md` `Docs/a`\n",
        "Docs/b.md": "# Nobody leads here\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "Docs" / "big.png").write_bytes(bytes(300_001))
    return Links({name: Page(name, text) for name, text in pages.items()}, tmp_path)


def test_dead_links(links: Links, tmp_path: Path) -> None:
    pages = links._pages
    found = [text.partition(": ")[2] for text in links.dead(pages["README.md"])]
    assert found[0] == "'Docs/gone.md' leads to Docs/gone.md, which does not exist"
    # Where capitals do not count, the second leads somewhere.
    other = "'docs/a.md' leads to docs/a.md, which does not exist"
    assert found[1:] == ([other] if tells_capitals_apart(tmp_path) else [])
    wrong, out, big, far = links.dead(pages["Docs/a.md"])
    assert wrong == "Docs/a.md:2: '#there': Docs/a.md has no heading 'there'; it has: here"
    assert "leads out of the project" in out and "300001 bytes" in big and far.startswith("Docs/a.md:3: a picture from")
    assert list(links.missing_files(pages["Docs/a.md"])) == ["Docs/a.md:2: there is no Scripts/no.py"]
    assert links.orphans() == ["Docs/b.md"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```\npython server.py --prot 5001\n```", "2: server.py has no option --prot"),
        ("```bash\nbash run_linux.sh check --strict --onlin\n```", "2: run_linux.sh has no option --onlin"),
        ("Use `python run_waitress.py --listn`.", "1: run_waitress.py has no option --listn"),
        ("```\nvenv/bin/python Scripts/memory_tol.py list\n```", "2: there is no program Scripts/memory_tol.py"),
        ("`python -m Scripts.node_refrence`", "1: there is no program Scripts/node_refrence.py"),
        ("`python -m Scripts.generate --chek`", "1: Scripts/generate/__main__.py has no option --chek"),
        ("```\npython server.py \\\n  --User me \\\n  --nothing\n```", "2: server.py has no option --nothing"),
        ("The flag `--lisen ADDRESS`.", "1: --lisen is probably meant to be --listen"),
    ],
)
def test_wrong_command_lines(text: str, told: str) -> None:
    assert problems(Page("page.md", text)) == [f"page.md:{told}"]


@pytest.mark.parametrize(
    "text",
    [
        "```\nbash run_linux.sh --User me --port 5001 --listen\nrun_windows.bat check --strict\n```",
        "`curl --max-redirs 0`",
        "```\npython server.py --User me | grep --colour x\nllama-server --mmproj x\n```",
        "`venv\\Scripts\\python Scripts\\memory_tool.py list`",
        "`bash Scripts/developer/run_tests.sh --cov=Middleware`",
        '```json other\n{"a": "python server.py --nothing"}\n```',
    ],
)
def test_right_command_lines(text: str) -> None:
    assert problems(Page("page.md", text)) == []
