"""The pictures of Docs/User/open-webui.md and sillytavern.md, by doing what these pages say; see README.md here."""

from __future__ import annotations

import argparse
from pathlib import Path

from Tests.integration.launcher import PROJECT
from Tests.manual.browser import Browser
from Tests.manual.camera import Camera
from Tests.manual.open_webui import settings
from Tests.manual.open_webui_steps import Steps as OpenWebUISteps
from Tests.manual.program import Program, free_port
from Tests.manual.report import argument_parser, program_path
from Tests.manual.scene import Scene
from Tests.manual.sillytavern import CONFIG
from Tests.manual.sillytavern_steps import Steps as SillyTavernSteps

CONNECTIONS = ("OPENAI_API_BASE_URL", "OPENAI_API_KEY", "OLLAMA_BASE_URL")
"""What Open WebUI would take from its environment; the pages enter it by hand."""


def main() -> None:
    arguments = _arguments()
    with Scene(arguments.launcher, arguments.port) as scene:
        if arguments.open_webui:
            _open_webui(scene, arguments)
        if arguments.sillytavern:
            _sillytavern(scene, arguments)


def _open_webui(scene: Scene, arguments: argparse.Namespace) -> None:
    port = free_port()
    kept = settings(scene.folder / "open-webui", scene.server.url)
    environment = {name: value for name, value in kept.items() if name not in CONNECTIONS}
    program = Program([arguments.open_webui, "serve", "--host", "127.0.0.1", "--port", str(port)], environment)
    with program, Browser(arguments.chromedriver, arguments.chromium) as browser:
        program.wait_answer(f"http://127.0.0.1:{port}/health", 240)
        OpenWebUISteps(browser, scene, Camera(browser, arguments.to, "open-webui"), f"http://127.0.0.1:{port}").all()


def _sillytavern(scene: Scene, arguments: argparse.Namespace) -> None:
    port = free_port()
    data = scene.folder / "sillytavern"
    data.mkdir()
    config = data / "config.yaml"
    config.write_text(CONFIG.format(data=data.as_posix(), port=port), encoding="utf-8")
    command = [arguments.node, "server.js", "--configPath", str(config), "--dataRoot", str(data), "--port", str(port)]
    program = Program(command, folder=arguments.sillytavern)
    with program, Browser(arguments.chromedriver, arguments.chromium) as browser:
        program.wait_answer(f"http://127.0.0.1:{port}/", 240)
        SillyTavernSteps(browser, scene, Camera(browser, arguments.to, "sillytavern"), f"http://127.0.0.1:{port}").all()


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__, screenshots=False)
    parser.add_argument("--open-webui", type=program_path, help="the program open-webui")
    parser.add_argument("--sillytavern", type=Path, metavar="FOLDER", help="the folder with SillyTavern's server.js")
    parser.add_argument("--node", default="node", type=program_path)
    parser.add_argument("--port", type=int, default=5000, help="WilmerAI's, as it stands in the pictures")
    parser.add_argument("--to", type=Path, default=PROJECT / "Docs" / "images", metavar="FOLDER")
    return parser.parse_args()


if __name__ == "__main__":
    main()
