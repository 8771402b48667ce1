"""The page Configuration before a server that edits files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from Middleware.addons.console.sign_in import make_code
from Middleware.addons.records.console_folder import ConsoleFolder
from Tests.addons.check.config_tree import CODING, ENDPOINT, GENERAL, MCP, MEMORY, write_tree
from Tests.addons.console.editing.test_unsaved import PLANTED, TEST_FILE, TESTS
from Tests.amounts import DEEP
from Tests.console.conftest import PATIENCE, Contexts
from Tests.console.scripted_server import Failure, ScriptedServer
from Tests.integration.launcher import Launcher
from Tests.integration.prelude import COMMANDS_IN_TIME, launcher_after

SECRET = "sk-Canary-77"
# The line with the cursor.
LINE = """() => {
    const node = getSelection().anchorNode;
    return (node?.nodeType === 1 ? node : node?.parentElement)?.closest(".cm-line")?.textContent;
}"""
# In one step: a link to a line moves the cursor once more when the address has changed, maybe between two steps.
PASTE_OVER_ALL = """(element, text) => {
    const command = /Mac/.test(navigator.platform) ? { metaKey: true } : { ctrlKey: true };
    const selectAll = { key: "a", keyCode: 65, bubbles: true, cancelable: true, ...command };
    element.dispatchEvent(new KeyboardEvent("keydown", selectAll));
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    element.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


class Console:
    """A server whose configuration may be saved, and its files."""

    def __init__(self, public: Path, server: Launcher) -> None:
        self.configs, self.server = public / "Configs", server
        self.folder = ConsoleFolder(str(public / "Console"))
        self.url = f"{server.url}/console/"
        self.original = {
            path.relative_to(self.configs).as_posix(): path.read_text(encoding="utf-8")
            for path in self.configs.rglob("*.json")
        }

    def start_anew(self) -> None:
        """Write the files as they are at first."""
        for file, text in self.original.items():
            if self.read(file) != text:
                self.write(file, text)

    def read(self, file: str) -> str:
        return (self.configs / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        (self.configs / file).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    public = tmp_path_factory.mktemp("config") / "Public"
    (write_tree(public) / TESTS).write_text(TEST_FILE, encoding="utf-8")
    script = launcher_after(public.parent, "run_waitress.py", *COMMANDS_IN_TIME)
    with Launcher(script, "--PublicDirectory", public, "--User", "alice", "--console", "edit") as server:
        yield Console(public, server)


@pytest.fixture
def console(started: Console) -> Console:
    started.start_anew()
    return started


@pytest.fixture
def tab(console: Console, contexts: Contexts) -> Iterator[Page]:
    """A tab, signed in as operator."""
    with contexts.tab(signed_in=False) as page:
        page.goto(f"{console.url}#signin={make_code(console.folder.secret(), time.time())}")
        expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
        yield page


def opened(tab: Page, console: Console, file: str, line: int | None = None) -> Locator:
    """Open a file and return its editor."""
    tab.goto(f"{console.url}#/config?file={file}" + (f"&line={line}" if line else ""))
    box = tab.get_by_role("textbox", name="Configuration file")
    expect(tab.get_by_role("heading", level=2, name=file)).to_be_visible()
    expect(box).to_be_editable()
    return box


def write(box: Locator, text: str) -> None:
    """Paste a text over the whole file."""
    box.focus()
    box.evaluate(PASTE_OVER_ALL, text)


def replace(box: Locator, console: Console, file: str, old: str, new: str) -> str:
    text = console.read(file)
    assert old in text
    write(box, text.replace(old, new, 1))
    return text.replace(old, new, 1)


def stands_in(tab: Page, line: str) -> None:
    """Wait until the cursor is in a line."""
    deadline = time.monotonic() + PATIENCE / 1000
    while (found := tab.evaluate(LINE)) != line:
        assert time.monotonic() < deadline, f"{found!r} instead of {line!r}"
        tab.wait_for_timeout(50)


def said(tab: Page, text: str) -> None:
    expect(tab.get_by_role("status", name="Editor")).to_contain_text(text)


def press(tab: Page, name: str) -> None:
    """Press a button of the page. What the editor explains below the mouse may cover it, so the mouse goes first."""
    tab.mouse.move(0, 0)
    tab.get_by_role("button", name=name, exact=True).click()


def save(tab: Page) -> None:
    press(tab, "Save")


def saved(tab: Page) -> None:
    expect(tab.get_by_role("status", name="Editor")).to_have_text("saved")


def test_letters_that_come_faster_than_the_page_is_drawn_stay(tab: Page, console: Console) -> None:
    box = opened(tab, console, GENERAL)
    for key in ("ControlOrMeta+Home", "End", "Enter"):
        box.press(key)
    tab.keyboard.type('"description": "written without a pause')
    # The second quotation mark comes by itself, and is written over.
    tab.keyboard.type('",')
    expect(box).to_contain_text('"description": "written without a pause",')
    said(tab, "unsaved changes · checked")
    expect(tab.get_by_role("list", name="Findings")).to_have_text("")
    save(tab)
    saved(tab)
    assert json.loads(console.read(GENERAL))["description"] == "written without a pause"


def test_each_mistake_is_shown_at_its_line(tab: Page, console: Console) -> None:
    box, last = None, ""
    # Tests/addons/console/editing/test_unsaved.py has the server find each; one shows whether the page does.
    planted = sorted(PLANTED) if DEEP else list({mistake[0]: mistake for mistake in sorted(PLANTED)}.values())
    for file, old, new, part in planted:
        if file != last:
            tab.evaluate("location.hash = '#/settings'")
            box, last = opened(tab, console, file), file
        assert box is not None
        good = console.read(file)
        start = good.index(old)
        mark = new.index("|") if "|" in new else new.rindex("\n") + 1 if "\n" in new else 0
        text = replace(box, console, file, old, new.replace("|", ""))
        # Sooner than by waiting until it is checked by itself, as other tests do.
        press(tab, "Check")
        line = text.count("\n", 0, start + mark) + 1
        found = tab.get_by_role("list", name="Findings").get_by_role("listitem").filter(has_text=part)
        link = found.get_by_role("link").filter(has_text=f"{file}:{line}:").first
        expect(link, f"{file}: {new}").to_be_visible()
        link.click()
        stands_in(tab, text.split("\n")[line - 1])
    press(tab, "Revert")
    said(tab, "checked")
    # Those of the other texts, which are unsaved as well, stay.
    findings = tab.get_by_role("list", name="Findings").get_by_role("listitem")
    expect(findings.filter(has_text=f"{last}:")).to_have_count(0)
    expect(findings.first).to_be_visible()


def test_keys_and_names_are_completed_and_explained(tab: Page, console: Console) -> None:
    box = opened(tab, console, GENERAL, line=16)
    stands_in(tab, '      "prompt": "{agent1Output}",')
    for key in ("End", "Enter"):
        box.press(key)
    tab.keyboard.type('"systemP')
    tab.get_by_role("option", name="systemPrompttext", exact=True).click()
    stands_in(tab, '      "systemPrompt"')
    tab.keyboard.type('": "Say {agent')
    tab.get_by_role("option", name="agent1Output").first.click()
    tab.keyboard.type("}")
    stands_in(tab, '      "systemPrompt": "Say {agent1Output}"')
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "End", "ArrowLeft", "ArrowLeft", *["Backspace"] * 4):
        box.press(key)
    tab.keyboard.type("Sp")
    tab.get_by_role("option", name="Spare").click()
    stands_in(tab, '      "endpointName": "Spare",')
    box.get_by_text('"returnToUser"').first.hover()
    expect(tab.get_by_text("true or false").first).to_be_visible()


def test_an_explanation_that_comes_after_the_mouse_has_left_is_not_shown(tab: Page, console: Console) -> None:
    box = opened(tab, console, GENERAL)
    held: list[Route] = []
    tab.route("**/api/config/assist", lambda route: held.append(route))
    with tab.expect_request("**/api/config/assist"):
        box.get_by_text('"returnToUser"').first.hover()
    tab.mouse.move(0, 0)
    with tab.expect_response("**/api/config/assist"):
        for route in held:
            route.continue_()
    tab.wait_for_timeout(300)
    expect(tab.get_by_text("true or false")).to_have_count(0)


def test_a_save_keeps_the_old_text_which_can_be_restored(tab: Page, console: Console) -> None:
    before = console.read(GENERAL)
    box = opened(tab, console, GENERAL)
    expect(tab.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    changed = replace(box, console, GENERAL, '"Think"', '"Ponder"')
    save(tab)
    saved(tab)
    assert console.read(GENERAL) == changed
    press(tab, "History")
    dialog = tab.get_by_role("dialog", name="History")
    dialog.get_by_role("radio").first.check()
    difference = dialog.get_by_role("group", name="Difference")
    expect(difference).to_contain_text("Think")
    expect(difference).to_contain_text("Ponder")
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog).to_be_hidden()
    said(tab, "unsaved changes")
    expect(box).to_contain_text('"Think"')
    save(tab)
    saved(tab)
    assert console.read(GENERAL) == before
    tab.get_by_role("link", name="Settings").click()
    changes = tab.get_by_role("table", name="Changes")
    expect(changes.get_by_role("row").nth(1)).to_contain_text(GENERAL)


def test_what_others_saved_meanwhile_is_not_lost(tab: Page, console: Console) -> None:
    box = opened(tab, console, GENERAL)
    mine = replace(box, console, GENERAL, '"Think"', '"Ponder"')
    theirs = console.read(GENERAL).replace('"Think"', '"Muse"')
    console.write(GENERAL, theirs)
    # The unsaved text waits while another file is looked at, and still belongs to the older version.
    opened(tab, console, CODING)
    box = opened(tab, console, GENERAL)
    expect(box).to_contain_text('"Ponder"')
    save(tab)
    dialog = tab.get_by_role("dialog", name="The file has changed in the meantime")
    expect(dialog.get_by_role("group", name="Difference")).to_contain_text("Muse")
    assert console.read(GENERAL) == theirs
    dialog.get_by_role("button", name="Cancel").click()
    expect(box).to_contain_text('"Ponder"')
    save(tab)
    dialog.get_by_role("button", name="Take the text on the disk").click()
    expect(box).to_contain_text('"Muse"')
    expect(tab.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    write(box, mine)
    console.write(GENERAL, theirs.replace("Muse", "Brood"))
    save(tab)
    dialog.get_by_role("button", name="Save over it").click()
    saved(tab)
    assert console.read(GENERAL) == mine


def test_what_is_not_json_is_not_saved(tab: Page, console: Console) -> None:
    before = console.read(GENERAL)
    box = opened(tab, console, GENERAL)
    text = replace(box, console, GENERAL, '"Think",', '"Think"')
    save(tab)
    expect(tab.get_by_role("alert")).to_contain_text(f"{GENERAL}:5")
    stands_in(tab, text.split("\n")[4])
    assert console.read(GENERAL) == before


def test_a_text_that_lets_the_server_do_more_is_saved_only_when_asked(tab: Page, console: Console) -> None:
    before = console.read(MCP)
    box = opened(tab, console, MCP)
    text = replace(box, console, MCP, '"python3"', '"rm"')
    save(tab)
    dialog = tab.get_by_role("dialog", name="This change lets the server do more")
    expect(dialog.get_by_role("listitem")).to_contain_text("rm")
    assert console.read(MCP) == before
    dialog.get_by_role("button", name="Cancel").click()
    said(tab, "unsaved changes")
    save(tab)
    dialog.get_by_role("button", name="Save anyway").click()
    saved(tab)
    assert console.read(MCP) == text


def test_a_text_that_comes_to_a_script_is_asked_about_and_a_title_is_not(tab: Page, console: Console) -> None:
    child = '{"nodes": [{"type": "PythonModule", "module_path": "{agent1Input}"}]}'
    console.write(CODING, child)
    caller = """{
  "nodes": [
    {"type": "StaticResponse", "title": "Choose", "content": "/home/me/a.py"},
    {"type": "CustomWorkflow", "workflowName": "Coding", "scoped_variables": ["{agent1Output}"]}
  ]
}"""
    console.write(GENERAL, caller)
    box = opened(tab, console, GENERAL)
    replace(box, console, GENERAL, "Choose", "Which one")
    save(tab)
    saved(tab)
    text = replace(box, console, GENERAL, "a.py", "b.py")
    save(tab)
    dialog = tab.get_by_role("dialog", name="This change lets the server do more")
    line = dialog.get_by_role("listitem")
    expect(line).to_contain_text("gives a workflow that acts on it the input {agent1Output}, where {agent1Output} is")
    expect(line).to_contain_text("/home/me/b.py (line 4)")
    dialog.get_by_role("button", name="Save anyway").click()
    saved(tab)
    assert console.read(GENERAL) == text


def test_secrets_stay_on_the_server_and_survive(tab: Page, console: Console) -> None:
    console.write(
        ENDPOINT,
        console.read(ENDPOINT)
        .replace("{\n", '{\n  "apiKey": "' + SECRET + '",\n', 1)
        .replace("http://", f"http://me:{SECRET}@"),
    )
    console.write(MCP, '{\n  "transport": "stdio",\n  "command": "python3",\n  "env": {"TOKEN": "' + SECRET + '"}\n}')
    received: list[bytes] = []
    tab.on("response", lambda answer: received.append(answer.body()) if "/api/config/" in answer.url else None)
    for file, line, more in (
        (ENDPOINT, '  "maxContextTokenSize": 8192,', '"comment": "mine",'),
        (MCP, '  "transport": "stdio",', '"headers": {},'),
    ):
        before = console.read(file)
        box = opened(tab, console, file)
        expect(box).to_contain_text("<kept secret 1>")
        expect(tab.get_by_text("are shown as")).to_be_visible()
        press(tab, "Check everything")
        expect(tab.get_by_text("files in")).to_be_visible(timeout=5 * PATIENCE)
        box.get_by_text(line.split('"')[1]).first.click()
        stands_in(tab, line)
        for key in ("End", "Enter"):
            box.press(key)
        tab.keyboard.type(more)
        save(tab)
        saved(tab)
        assert console.read(file) == before.replace(line, f"{line}\n  {more}") and SECRET in before
        press(tab, "History")
        dialog = tab.get_by_role("dialog", name="History")
        dialog.get_by_role("radio").first.check()
        expect(dialog.get_by_role("group", name="Difference")).to_contain_text("<kept secret")
        dialog.get_by_role("button", name="Cancel").click()
    assert len(received) > 8 and not [body for body in received if SECRET.encode() in body]


def test_everything_is_checked_and_the_tree_leads_to_it(tab: Page, console: Console) -> None:
    console.write(CODING, console.read(CODING).replace('"Child"', '"Chold"'))
    console.write(MEMORY, console.read(MEMORY).replace('"Main"', '"Mainn"'))
    tab.goto(f"{console.url}#/config")
    press(tab, "Check everything")
    files = tab.get_by_role("tree", name="Files")
    found = tab.get_by_role("list", name="Findings")
    expect(found).to_contain_text("Did you mean 'Child'?", timeout=5 * PATIENCE)
    expect(found).to_contain_text("Did you mean 'Main'?")
    expect(tab.get_by_text("files in")).to_contain_text("2 errors")
    files.get_by_role("treeitem", name="Workflows, 7 files, with errors").click()
    files.get_by_role("treeitem", name="alice, 6 files, with errors").click()
    files.get_by_role("treeitem", name="Coding.json, 1 error").click()
    expect(tab.get_by_role("textbox", name="Configuration file")).to_contain_text("Chold")
    found.get_by_role("link", name=MEMORY).click()
    expect(tab.get_by_role("heading", level=2, name=MEMORY)).to_be_visible()
    expect(tab.get_by_role("textbox", name="Configuration file")).to_be_focused()
    stands_in(tab, '  "endpointName": "Mainn",')


def test_the_line_of_a_node_is_opened(tab: Page, console: Console) -> None:
    tab.goto(f"{console.url}#/workflows/alice/General")
    tab.get_by_role("list", name="Nodes").get_by_role("link", name="Line 11").click()
    expect(tab.get_by_role("heading", level=2, name=GENERAL)).to_be_visible()
    expect(tab.get_by_role("textbox", name="Configuration file")).to_be_focused()
    stands_in(tab, console.read(GENERAL).split("\n")[10])


def test_the_editor_is_left_by_the_keyboard(tab: Page, console: Console) -> None:
    box = opened(tab, console, GENERAL, line=4)
    expect(box).to_be_focused()
    for key in ("Escape", "Tab"):
        tab.keyboard.press(key)
    expect(box).not_to_be_focused()
    expect(tab.get_by_role("status", name="Editor")).not_to_contain_text("unsaved")


# -- with scripted answers ---------------------------------------------------------------------------------------------

FILES = {
    "files": [
        {"path": "Users/demo.json", "kind": "user", "title": "user"},
        {"path": "Workflows/demo/Coding.json", "kind": "workflow", "title": "workflow"},
    ]
}
FILE = {
    "path": "Workflows/demo/Coding.json",
    "text": '{\n  "nodes": [\n    {"endpointNam": "Worker"}\n  ]\n}\n',
    "base": "0" * 64,
    "secrets": 0,
    "findings": [
        {
            "severity": "error",
            "file": "Workflows/demo/Coding.json",
            "line": 3,
            "column": 6,
            "jsonPath": "nodes[0]",
            "message": "unknown key 'endpointNam'",
            "expected": "",
            "suggestion": "endpointName",
            "users": ["demo"],
        }
    ],
}
SCRIPT = {
    ("GET", "config/files"): FILES,
    ("GET", "config/file"): FILE,
    ("POST", "config/check"): {"findings": FILE["findings"]},
    ("GET", "config/history"): {
        "path": FILE["path"],
        "text": '{\n  "nodes": []\n}\n',
        "versions": [{"at": 1_700_000_000_000_000, "size": 18}],
    },
}


def test_without_the_flag_a_file_can_be_written_and_checked_but_not_saved(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script(SCRIPT)
    page.goto(f"{scripted.url}#/config?file=Workflows/demo/Coding.json")
    box = page.get_by_role("textbox", name="Configuration file")
    expect(page.get_by_role("list", name="Findings").get_by_role("listitem")).to_have_text(
        "Workflows/demo/Coding.json:3:6 error unknown key 'endpointNam'. Did you mean 'endpointName'?"
    )
    said(page, "Saving is off: start with --console edit")
    assert sorted(path.split("?")[0] for _, path in scripted.world.calls if path != "session") == [
        "config/file",
        "config/files",
    ]
    box.press("ControlOrMeta+End")
    page.keyboard.type("x")
    said(page, "checked")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()


def test_a_check_that_fails_is_told(page: Page, scripted: ScriptedServer) -> None:
    scripted.world.script({**SCRIPT, ("POST", "config/check-all"): Failure(503, "The check did not end.")})
    page.goto(f"{scripted.url}#/config")
    page.get_by_role("button", name="Check everything").click()
    expect(page.get_by_role("alert")).to_contain_text("The check did not end.")
