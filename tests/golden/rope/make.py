#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes inv_freq.txt: RoPE frequencies as transformers works them out (f32), one case a line:

    head_dim theta factor low_freq_factor high_freq_factor original_context : frequencies

factor 0 means no scaling. The cases are those of published models. Needs torch and transformers.
"""
import os

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [(64, 100000.0, 0, 0, 0, 0),        # SmolLM2-135M
         (128, 10000.0, 0, 0, 0, 0),        # Llama 2
         (128, 500000.0, 0, 0, 0, 0),       # Llama 3
         (128, 500000.0, 8.0, 1.0, 4.0, 8192),   # Llama 3.1
         (64, 500000.0, 32.0, 1.0, 4.0, 8192),   # Llama 3.2 1B
         (16, 500.0, 8.0, 1.0, 4.0, 32)]         # the tiny model of ../models
HERE = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(HERE, "inv_freq.txt"), "w", encoding="utf-8") as f:
    for dim, theta, factor, low, high, context in CASES:
        rope = {"rope_type": "default", "rope_theta": theta}
        if factor:
            rope = {"rope_type": "llama3", "rope_theta": theta, "factor": factor,
                    "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": context}
        config = LlamaConfig(hidden_size=dim * 4, num_attention_heads=4, head_dim=dim,
                             max_position_embeddings=131072, rope_parameters=rope)
        rotary = LlamaRotaryEmbedding(config)
        assert rotary.attention_scaling == 1.0
        values = " ".join(repr(float(x)) for x in rotary.inv_freq)
        f.write(f"{dim} {theta:g} {factor:g} {low:g} {high:g} {context} : {values}\n")
