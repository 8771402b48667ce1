"""How often a model does what the shipped prompts for routes, search words and memories ask for.

    python benchmarks/prompts.py --url http://127.0.0.1:8080 [NAME ...] [--every 4] [--failures] [--configs FOLDER]
    python benchmarks/prompts.py --url http://127.0.0.1:8080 assistant --results answers.jsonl [--free]
    python benchmarks/prompts.py --url http://127.0.0.1:8080 remember [remember:de-1 ...] [--keep FOLDER]

The cases in ``benchmarks/cases`` are sent through the real server, with the shipped workflows and those of ``init``, to
the LLM server at the address. Only what comes after the prompt in question is replaced, by a node that returns what was
chosen. The temperature is 0, so that a second run gives the same figures. ``--results`` writes each answer down as it
comes, and a run that was stopped goes on behind them. ``prompts_memory.py`` says how memories are judged; their
conversations make discussions, such as ``de-1``, which ``--keep`` keeps for questions in a later run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.prompts_memory import MEMORY_WINDOW, WRITERS, Run, Score, Writers, discussions
from Middleware.addons.init.plan import Choice, make_plan
from Middleware.addons.init.servers import Model, Server
from Tests.docs.blocks import whole_files
from Tests.docs.markdown import read
from Tests.integration.launcher import ConfigTree, Launcher

PROJECT = Path(__file__).resolve().parents[1]
CASES = Path(__file__).resolve().parent / "cases"
USER = "me"
NOTHING = "(nothing)"
# A model on a busy processor may need minutes for a prompt.
PATIENCE = 1800.0


Node = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """The end of a conversation, and what is expected of the prompt.

    Attributes:
        group: under which column its result is counted.
        words: groups of words, one of each of which must be in the answer.
        none: nothing is to be looked up.
    """

    messages: Sequence[str]
    language: str
    group: str
    fiction: bool = False
    words: Sequence[Sequence[str]] = ()
    none: bool = False

    @property
    def wire(self) -> list[dict[str, str]]:
        return [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate(self.messages)
        ]


@dataclass(frozen=True)
class Prompt:
    """A prompt of a workflow, and how its answers are judged.

    Attributes:
        user: who runs it.
        user_keys: changes to the user's file.
        stand_ins: nodes of workflows (below ``Workflows``, without ``.json``) that are replaced or added.
        alone: a workflow that is cut down to its first node, whose output becomes the answer.
        model: the model name of the requests.
        cases: which are asked.
        right: whether an answer is right.
    """

    name: str
    user: str
    cases: Sequence[Case]
    right: Callable[[Case, str], bool]
    user_keys: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    alone: str = ""
    model: str = ""


@dataclass(frozen=True)
class Target:
    """What is measured: the shipped files, and the LLM server with the name of its API type.

    Attributes:
        window: how many tokens the model is said to take.
        free: no answer is held to a list of choices.
    """

    configs: Path
    url: str
    api_type: str
    window: int = 4096
    free: bool = False


# -- the cases ---------------------------------------------------------------------------------------------------------


def read_cases(name: str, held_out: bool) -> list[dict[str, Any]]:
    name = f"{name}_held_out" if held_out else name
    content = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    cases: list[dict[str, Any]] = content["cases"]
    return cases


def routing_cases(held_out: bool = False) -> list[Case]:
    return [
        Case(case["messages"], case["language"], case["category"], case.get("fiction", False))
        for case in read_cases("routing", held_out)
    ]


def search_cases(held_out: bool = False) -> list[Case]:
    return [
        Case(
            case["messages"],
            case["language"],
            "nothing" if case.get("none") else case["language"],
            words=case.get("words", ()),
            none=case.get("none", False),
        )
        for case in read_cases("search_words", held_out)
    ]


def routed(routes: Mapping[str, str], otherwise: str) -> Callable[[Case, str], bool]:
    """Return a judge: the answer must be the route of the case's category, where FICTION precedes WRITING."""

    def right(case: Case, answer: str) -> bool:
        wanted = routes.get(case.group, otherwise)
        return answer == (routes.get("FICTION", wanted) if case.fiction else wanted)

    return right


def found(longest: int, refusal: str = "") -> Callable[[Case, str], bool]:
    """Return a judge of search words, of which there may be ``longest``; ``refusal``: the answer if there are none."""

    def right(case: Case, answer: str) -> bool:
        said = answer.lower()
        refused = not said.strip() or (bool(refusal) and said.strip(" *.\"'").startswith(refusal.lower()))
        if case.none:
            return refused
        return (
            not refused
            and len(said.split()) <= longest
            and all(any(word in said for word in group) for group in case.words)
        )

    return right


# -- the prompts -------------------------------------------------------------------------------------------------------


def says(text: str) -> list[Node]:
    """Return the nodes of a workflow that returns a text."""
    return [{"title": "Say what was chosen", "type": "StaticResponse", "content": text, "returnToUser": True}]


def routing_stand_ins(configs: Path, routing: str, folder: str) -> dict[str, list[Node]]:
    """Return a stand-in for each route of a routing file, and for the default workflow."""
    content = json.loads((configs / "Routing" / f"{routing}.json").read_text(encoding="utf-8"))
    routes = {f"{folder}/{entry['workflow']}": says(name) for name, entry in content.items() if isinstance(entry, dict)}
    return {**routes, f"{folder}/_DefaultWorkflow": says(NOTHING)}


def prompts(configs: Path, held_out: bool = False) -> list[Prompt]:
    cases = routing_cases(held_out)
    articles = search_cases(held_out)
    some_article = [case for case in articles if not case.none]
    simple, custom = (
        "_simple_router_no_memory",
        "_exampleCustomCategoriesConfig",
    )
    researcher = "_offline_wikipedia_researcher"
    return [
        Prompt(
            "assistant",
            USER,
            cases,
            routed({"CODING": "CODING", "WRITING": "WRITING"}, "CONVERSATION"),
            model=f"{USER}:assistant",
            stand_ins={
                f"{USER}/_Coding": says("CODING"),
                f"{USER}/_Writing": says("WRITING"),
                f"{USER}/memory/_DefaultWorkflow": says("CONVERSATION"),
            },
        ),
        Prompt(
            "demo",
            "demo",
            cases,
            routed({"CODING": "CODING", "FICTION": "STORY"}, "GENERAL"),
            stand_ins=routing_stand_ins(configs, "demo", "demo"),
        ),
        Prompt(
            "router-2",
            simple,
            cases,
            routed({"WIKI": "WIKI"}, "GENERAL"),
            stand_ins=routing_stand_ins(configs, "_defaultCategoriesConfig", simple),
        ),
        Prompt(
            "router-5",
            simple,
            cases,
            routed({name: name for name in ("CODING", "REASONING", "WIKI", "SMALLTALK")}, "GENERAL"),
            {"routingConfig": custom},
            routing_stand_ins(configs, custom, simple),
        ),
        Prompt(
            "cookbook",
            USER,
            cases,
            routed({"CODING": "CODE", "WRITING": "WRITING"}, "CHAT"),
            model=f"{USER}:router",
            stand_ins={
                f"{USER}/router/Router-Code": says("CODE"),
                f"{USER}/router/Router-Writing": says("WRITING"),
                f"{USER}/router/Router-Chat": says("CHAT"),
            },
        ),
        Prompt(
            "article",
            simple,
            some_article,
            found(8),
            {"customWorkflowOverride": True, "customWorkflow": "Wiki"},
            alone=f"{simple}/Wiki",
        ),
        Prompt(
            "research",
            "_wikipedia_quick_workflow",
            articles,
            found(8),
            stand_ins={
                "_wikipedia_quick_workflow/Quick-Research-And-Answer": [
                    {
                        "title": "Research",
                        "type": "CustomWorkflow",
                        "workflowName": "One-Pass-Research",
                        "workflowUserFolderOverride": researcher,
                        "scoped_variables": ["Rag-Fast-Endpoint", ""],
                        "returnToUser": True,
                    }
                ],
                f"{researcher}/Look-Up": says("{agent3Input}"),
            },
        ),
        Prompt(
            "cookbook-wiki",
            USER,
            articles,
            found(8, "none"),
            alone=f"{USER}/wikipedia/_DefaultWorkflow",
            model=f"{USER}:wikipedia",
        ),
    ]


# -- the configuration -------------------------------------------------------------------------------------------------


def write_configuration(public: Path, prompt: Prompt, target: Target) -> None:
    """A copy of the shipped files, those of ``init`` and of the cookbook, all of whose LLMs are at the address."""
    shutil.copytree(target.configs, public / "Configs")
    tree = ConfigTree(public)
    server = Server(target.url, "llama.cpp", (Model("model", window=target.window, thinks=False),))
    for path, content in make_plan(Choice(server, server.models[0], USER, 5000)).files.items():
        tree.write(path, content.decode("utf-8"))
    pages = ("router", "wikipedia") if "cookbook" in prompt.name else ()
    for name in pages:
        for block in whole_files(read(PROJECT / "Docs/User/cookbook" / f"{name}.md", PROJECT)):
            tree.write(block.value, block.fence.text)
    for file in (tree.configs / "Endpoints").rglob("*.json"):
        edit(
            file,
            {
                "endpoint": target.url,
                "apiTypeConfigFileName": target.api_type,
                "maxContextTokenSize": target.window,
                "presetSamplers": {"temperature": 0},
                "modelNameToSendToAPI": "",
                "dontIncludeModel": True,
            },
        )
    edit(tree.configs / "Users" / f"{prompt.user}.json", {**prompt.user_keys, "port": 5000})
    for name, nodes in prompt.stand_ins.items():
        tree.write(f"Workflows/{name}.json", {"nodes": nodes})
    if prompt.alone:
        file = tree.configs / "Workflows" / f"{prompt.alone}.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        asking = next(node for node in content["nodes"] if node["type"] == "Standard")
        tree.write(f"Workflows/{prompt.alone}.json", {**content, "nodes": [{**asking, "returnToUser": True}]})
    if target.free:
        for file in (tree.configs / "Workflows").rglob("*.json"):
            set_free(file)


def edit(file: Path, changes: Mapping[str, Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def set_free(file: Path) -> None:
    """Take the lists of choices out of a workflow."""
    content = json.loads(file.read_text(encoding="utf-8"))
    nodes = [
        {key: value for key, value in node.items() if key not in ("answerChoices", "rememberChoice")}
        for node in content.get("nodes", ())
    ]
    file.write_text(json.dumps({**content, "nodes": nodes} if nodes else content), encoding="utf-8")


# -- the run -----------------------------------------------------------------------------------------------------------


def answers(prompt: Prompt, cases: Iterable[Case], target: Target) -> Iterator[tuple[Case, str]]:
    """Yield each case with the answer to it."""
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder) / "Public"
        write_configuration(public, prompt, target)
        with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", prompt.user) as server:
            for case in cases:
                body = {"model": prompt.model or "any", "messages": case.wire, "stream": False}
                response = server.request("POST", "/v1/chat/completions", body, timeout=PATIENCE)
                if response.status != 200:
                    raise SystemExit(f"{prompt.name}: {response.error}\n{server.output()[-3000:]}")
                yield case, response.text.strip()


def mixed(cases: Sequence[Case]) -> list[Case]:
    """Return the cases, one of each group in turn."""
    seen: defaultdict[str, int] = defaultdict(int)
    rounds: list[tuple[int, Case]] = []
    for case in cases:
        rounds.append((seen[case.group], case))
        seen[case.group] += 1
    return [case for _, case in sorted(rounds, key=lambda entry: entry[0])]


@dataclass(frozen=True)
class Results:
    """Answers in a file, a line of JSON for each, which a later run does not ask for again."""

    file: Path | None = None

    def known(self, prompt: Prompt) -> dict[tuple[str, ...], str]:
        """Return the answers to cases of a prompt, by their messages."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file and self.file.is_file() else []
        found = [json.loads(line) for line in lines]
        return {tuple(one["messages"]): one["answer"] for one in found if one["prompt"] == prompt.name}

    def add(self, prompt: Prompt, case: Case, answer: str, right: bool) -> None:
        if self.file:
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(
                    json.dumps(
                        {
                            "prompt": prompt.name,
                            "group": case.group,
                            "language": case.language,
                            "right": right,
                            "answer": answer,
                            "messages": case.messages,
                        },
                        ensure_ascii=False,
                    )
                    + "\n"
                )


def measure(
    prompt: Prompt, every: int, failures: bool, target: Target, seconds: float = math.inf, results: Results = Results()
) -> None:
    """Ask the cases of a prompt and print a line: how many answers are right, and in each group.

    ``seconds``: no further case is asked after these.
    """
    asked: defaultdict[str, int] = defaultdict(int)
    right: defaultdict[str, int] = defaultdict(int)
    misses: list[str] = []
    began = time.monotonic()
    known = results.known(prompt)
    chosen = mixed(prompt.cases[::every])
    there = [(case, known[tuple(case.messages)]) for case in chosen if tuple(case.messages) in known]
    missing = [case for case in chosen if tuple(case.messages) not in known]
    for case, answer in itertools.chain(there, answers(prompt, missing, target) if missing else ()):
        hit = prompt.right(case, answer)
        if tuple(case.messages) not in known:
            results.add(prompt, case, answer, hit)
        asked[case.group] += 1
        right[case.group] += hit
        if not hit:
            misses.append(f"    {case.group}: {case.messages[-1][:70]!r} -> {answer[:90]!r}")
        if time.monotonic() - began > seconds:
            break
    groups = "  ".join(f"{group} {right[group]}/{count}" for group, count in asked.items())
    total = sum(asked.values())
    print(
        f"{prompt.name:16} {sum(right.values()):3} of {total:3}  {sum(right.values()) / total:4.0%}  {groups}  "
        f"({(time.monotonic() - began) / total:.2f} s each)",
        flush=True,
    )
    if failures:
        print(*misses, sep="\n", flush=True)


def measure_memories(
    name: str, writers: Writers, chosen: set[str], every: int, failures: bool, target: Target, folder: Path
) -> None:
    """Let a prompt remember discussions, all or those ``chosen``, and print what came of each and of all."""
    public = folder / name
    shutil.rmtree(public / "Configs", ignore_errors=True)
    write_configuration(
        public,
        Prompt(name, writers.user, (), lambda case, answer: False),
        dataclasses.replace(target, window=MEMORY_WINDOW),
    )
    known = [one for one in discussions(writers.kind) if not chosen or one.name in chosen][::every]
    total = Score()
    for discussion, score in Run(writers, public, PATIENCE).scores(known, failures):
        print(f"{name}:{discussion.name:6} {score.line()}", flush=True)
        if failures:
            print(*(f"    {miss}" for miss in score.misses), sep="\n", flush=True)
        total.add(score)
    print(f"{name:16} {total.line()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="address of the LLM server")
    parser.add_argument("--api-type", default="LlamaCppServer", help="name of its file in Public/Configs/ApiTypes")
    parser.add_argument(
        "--configs",
        type=Path,
        default=PROJECT / "Public" / "Configs",
        help="shipped files to measure, such as those of another version",
    )
    parser.add_argument("--every", type=int, default=1, help="ask only each so-many-th case")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="ask no further case of a prompt after this time (routes and search words)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="file for the answers (routes and search words); those in it are not asked for again",
    )
    parser.add_argument("--free", action="store_true", help="hold no answer to a list of choices")
    parser.add_argument(
        "--held-out", action="store_true", help="ask cases that no prompt was written with (routes and search words)"
    )
    parser.add_argument("--failures", action="store_true", help="print the cases that were answered wrongly")
    parser.add_argument(
        "--keep", type=Path, help="folder in which discussions are kept; those in it are not made again"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="prompts to measure (all)")
    options = parser.parse_args()
    known = prompts(options.configs, options.held_out)
    target = Target(options.configs, options.url, options.api_type, free=options.free)
    names = [*(one.name for one in known), *WRITERS]
    if unknown := {name.partition(":")[0] for name in options.names} - set(names):
        parser.error(f"no prompt {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for prompt in known:
        if not options.names or prompt.name in options.names:
            measure(prompt, options.every, options.failures, target, options.seconds, Results(options.results))
    with tempfile.TemporaryDirectory() as folder:
        for name, writers in WRITERS.items():
            asked = [one.partition(":") for one in options.names if one.partition(":")[0] == name]
            if asked or not options.names:
                measure_memories(
                    name,
                    writers,
                    {one for _, _, one in asked if one},
                    options.every,
                    options.failures,
                    target,
                    options.keep or Path(folder),
                )


if __name__ == "__main__":
    main()
