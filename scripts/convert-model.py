#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites a GGUF file with its matrices in another type; for benchmarks and comparisons.

    convert-model.py IN.gguf OUT.gguf f32|f16|bf16|q8_0|q4_0|q4_1

Metadata is copied as it is, but for general.file_type. Norms and other vectors stay F32. With a
4-bit type the embedding and the head stay Q8_0, as llama.cpp's own quantiser leaves the embedding
of a model whose head is tied to it. Values are dequantised to f32 and rounded once to the new type.
Needs numpy and gguf (PyPI).
"""
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as QT
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

TYPES = {
    "f32": (QT.F32, LlamaFileType.ALL_F32),
    "f16": (QT.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (QT.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (QT.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (QT.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (QT.Q4_1, LlamaFileType.MOSTLY_Q4_1),
}


def type_of(tensor, wanted):
    if len(tensor.shape) < 2:
        return QT.F32
    if wanted in (QT.Q4_0, QT.Q4_1) and tensor.name in ("token_embd.weight", "output.weight"):
        return QT.Q8_0
    return wanted


def copy_metadata(reader, writer, file_type):
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    writer.add_file_type(file_type)


def main():
    if len(sys.argv) != 4 or sys.argv[3].lower() not in TYPES:
        sys.exit(__doc__)
    source, target, name = sys.argv[1], sys.argv[2], sys.argv[3].lower()
    wanted, file_type = TYPES[name]
    reader = GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    aside = target + ".part"
    writer = GGUFWriter(aside, arch)
    copy_metadata(reader, writer, file_type)
    for t in reader.tensors:
        to = type_of(t, wanted)
        if to == t.tensor_type:
            data = t.data
        else:
            values = quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            data = quants.quantize(values, to)
        writer.add_tensor(t.name, data, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=sys.stderr.isatty())
    writer.close()
    os.replace(aside, target)
    print(f"{target}: {len(reader.tensors)} tensors as {name}, {os.path.getsize(target)} bytes")


if __name__ == "__main__":
    main()
