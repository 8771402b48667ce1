"""A language model of a few hundred kilobytes with random weights, for tests of the wire: it talks nonsense, at once.

    python -m Tests.real.tiny_gguf model.gguf [other.gguf]

With another model's file it gets that one's vocabulary and chat template, and so counts tokens as that one does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

EMBEDDING, HEADS, FEED_FORWARD, LAYERS, CONTEXT = 64, 4, 128, 2, 16384
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """Pieces, scores and types of a SentencePiece vocabulary: markers, all bytes, and printable characters."""
    tokens, types = [b"<unk>", b"<s>", b"</s>"], [UNKNOWN, CONTROL, CONTROL]
    tokens += [f"<0x{number:02X}>".encode() for number in range(256)]
    types += [BYTE] * 256
    letters = [chr(code) for code in range(33, 127)] + ["\u2581"]
    tokens += [letter.encode() for letter in letters]
    types += [NORMAL] * len(letters)
    return tokens, [0.0 if kind != NORMAL else -1.0 for kind in types], types


def write_model(path: Path, seed: int = 7, words_of: Path | None = None) -> Path:
    """Write the model; the same seed gives the same file. ``words_of``: a model's file, whose vocabulary it gets."""
    import gguf
    import numpy

    random = numpy.random.default_rng(seed)

    def tensor(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.2).astype(numpy.float32)

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    words = _own_words(writer) if words_of is None else _copied_words(writer, words_of)
    writer.add_vocab_size(words)
    writer.add_tensor("token_embd.weight", tensor(words, EMBEDDING))
    writer.add_tensor("output_norm.weight", numpy.ones(EMBEDDING, dtype=numpy.float32))
    writer.add_tensor("output.weight", tensor(words, EMBEDDING))
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        writer.add_tensor(f"{name}.attn_norm.weight", numpy.ones(EMBEDDING, dtype=numpy.float32))
        writer.add_tensor(f"{name}.ffn_norm.weight", numpy.ones(EMBEDDING, dtype=numpy.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{name}.{part}.weight", tensor(EMBEDDING, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_gate.weight", tensor(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_up.weight", tensor(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_down.weight", tensor(EMBEDDING, FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _own_words(writer: Any) -> int:
    """Write the small vocabulary; returns its size."""
    tokens, scores, types = vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _copied_words(writer: Any, path: Path) -> int:
    """Write the vocabulary of another model; returns its size."""
    import gguf

    fields = gguf.GGUFReader(str(path)).fields
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    return len(fields["tokenizer.ggml.tokens"].data)


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]] or [Path("tiny.gguf")]
    print(write_model(paths[0], words_of=next(iter(paths[1:]), None)))
