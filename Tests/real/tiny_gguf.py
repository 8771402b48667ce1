"""A language model of a few hundred kilobytes with random weights, for tests of the wire: it talks nonsense, at once.

    python -m Tests.real.tiny_gguf model.gguf
"""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

EMBEDDING, HEADS, FEED_FORWARD, LAYERS, CONTEXT = 64, 4, 128, 2, 16384
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
CHAT_TEMPLATE = ("{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
                 "{% if add_generation_prompt %}<assistant>{% endif %}")


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """Pieces, scores and types of a SentencePiece vocabulary: markers, all bytes, and printable characters."""
    tokens, types = [b"<unk>", b"<s>", b"</s>"], [UNKNOWN, CONTROL, CONTROL]
    tokens += [f"<0x{number:02X}>".encode() for number in range(256)]
    types += [BYTE] * 256
    letters = [chr(code) for code in range(33, 127)] + ["\u2581"]
    tokens += [letter.encode() for letter in letters]
    types += [NORMAL] * len(letters)
    return tokens, [0.0 if kind != NORMAL else -1.0 for kind in types], types


def write_model(path: Path, seed: int = 7) -> Path:
    """Write the model; the same seed gives the same file."""
    import gguf
    import numpy

    tokens, scores, types = vocabulary()
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
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_tensor("token_embd.weight", tensor(len(tokens), EMBEDDING))
    writer.add_tensor("output_norm.weight", numpy.ones(EMBEDDING, dtype=numpy.float32))
    writer.add_tensor("output.weight", tensor(len(tokens), EMBEDDING))
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


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1] if len(sys.argv) > 1 else "tiny.gguf")))
