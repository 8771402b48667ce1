"""Tests that keep the documentation true: examples are checked, whole workflows are run, links lead somewhere.

    python -m pytest -q Tests/docs                 everything
    python -m pytest -q Tests/docs -k memory.md    one page (its name stands in every test's name)

**What a block is** stands in the info string of its fence, after the language; GitHub shows nothing of it.

- ```` ```json file=Workflows/me/critique/_DefaultWorkflow.json ````: a whole file, by its path in ``Public/Configs``.
  It is checked as by ``python server.py check``, beside the page's other files, in a configuration made by ``init``;
  notes count, too, as an unknown key is but a note there.
- ```` ```json node ````: one node or several, checked within a workflow. Brackets around several may be missing.
- ```` ```json node=ImageProcessor ````: some keys of a node of that type; braces may be missing.
- ```` ```json part=user ````: some keys of a file of that kind (one of ``files.KINDS``); braces may be missing.
- ```` ```json wire ````: a request or an answer; ```` ```json other ````: a file of another program. Only parsed.
- ```` ```python file=/scripts/roll.py ````: a script by its path in a workflow; other Python blocks are compiled.

**How a whole workflow is tried** stands in a comment directly above it, as JSON: ``<!-- try: {...} -->``. Without
one, and if no other example of the page uses the workflow, it is asked "Hello". All keys are optional:

- ``messages``: those of the request. ``[DiscussionId]name[/DiscussionId]`` works as it does for users.
- ``replies``: what the LLM says: ``{"text within the prompt": reply}``; the first that fits counts. A reply is a text,
  a list of texts for one call after the other (the last repeats), an object with ``tool_calls``
  (``[{"name": ..., "arguments": {...}}]``), or an error as ``{"status": 503}``.
  Without a fitting one: ``Reply N to: <beginning of the last message>``.
- ``expect``: what the answer must contain, a text or a list of texts. Tool calls belong to the answer, as JSON.
  ``lacks``: what it must not contain, likewise.
- ``sent``: what some prompt must contain, likewise.
- ``tools``: those of the request. ``body``: further keys of the request. ``stream``: true for a streamed answer.
- ``model``: ``""`` or another name in place of the workflow's own: who must be asked for the workflow to be reached.
- ``requests``: a list of objects with the keys above, one request after the other; ``replies`` above them hold for all.
- ``files``: ``{"path as the workflow has it": "content"}``, there before the first request; null: a file that must not
  be there. ``writes``: the same with what a file must contain afterwards.
- ``discussion``: ``{"state_document.md": "content"}``: files of the conversation that the messages name.
- ``web``: ``{"https://beginning.of/an-address": "what is there"}`` (or ``{"status": 500, "body": "..."}``); the
  workflow asks a local server instead, whatever ``allowedHosts`` and ``blockPrivateAddresses`` say.
- ``mcp``: ``{"server.tool": "what it says"}`` for the page's MCP servers.
- ``researcher``: what the offline researcher answers, an object.
- ``user``: keys to put into the user's file. ``variables``: for nodes: keys at the top of the workflow.
- ``log``: part of the warnings or errors that the log must show; otherwise there must be none.
- ``needs``: ``"wikipedia"`` and so on. All of them are always there; it tells readers.
"""
