"""The token counts that clients get: those of the back-end, in streams and whole answers alike."""
from __future__ import annotations

import json
import re
from typing import Any

import pytest

from Tests.integration.launcher import Backend, Launcher, sse_payloads
from Tests.stub_backend import RecordedRequest, Reply, chat_chunk, json_reply, sse_reply
from Tests.workflows.engine_lab import until

TIMINGS = {"cache_n": 69, "prompt_n": 13, "predicted_n": 20}
COUNTS = {"prompt_tokens": 82, "completion_tokens": 20, "total_tokens": 102}
CACHED = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 69}}
BODY = {"model": "Single", "stream_options": {"include_usage": True}, "prompt": "Hello"}
PATHS = ["/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate"]


def llama_cpp(request: RecordedRequest) -> Reply:
    """A whole answer of llama.cpp has both counts, a stream the timings alone."""
    if request.json.get("stream"):
        return sse_reply([chat_chunk({"content": "Hi"}), chat_chunk({}, "stop", timings=TIMINGS), "[DONE]"])
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    return json_reply({"choices": [choice], "usage": COUNTS, "timings": TIMINGS})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
def test_counts_of_llama_cpp(server: Launcher, backend: Backend, path: str, stream: bool) -> None:
    backend.replies["single"] = llama_cpp
    logged = server.output_size()
    hello = [{"role": "user", "content": backend.hello}]
    answer = server.request("POST", path, {**BODY, "messages": hello, "prompt": backend.hello, "stream": stream})
    assert answer.status == 200, answer.body
    last: dict[str, Any]
    if path.startswith("/api/"):
        last = json.loads(answer.body.splitlines()[-1])
        assert (last["prompt_eval_count"], last["eval_count"]) == (82, 20)
    else:
        last = json.loads(sse_payloads(answer.body)[-2]) if stream else answer.json
        assert last["usage"] == CACHED
    line = re.compile(r"done after \d+\.\d\d s, 1 call, 13 of 82 prompt tokens processed\r?$", re.MULTILINE)
    assert until(lambda: line.search(server.output(logged)) is not None), server.output(logged)
    assert "seconds || 82 tokens in, 69 cached, 20 out" in server.output(logged)
