"""Checks manifest.json and COMPLETE of a folder with Python's own hashlib and json."""
import hashlib
import json
import os

FIELDS = {
    "version", "kind", "run_id", "base_model", "base_digest", "tokenizer_digest", "template_digest", "dataset_digest",
    "validation_digest", "code_version", "kernel_set", "kernel_sets", "method", "precision", "seed", "parent",
    "retention_class", "created_at", "hyperparameters", "metrics", "files",
}


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def below(folder):
    """The files below a folder, as relative paths."""
    return sorted(os.path.relpath(os.path.join(at, f), folder) for at, _, names in os.walk(folder) for f in names)


def check(test, folder, kind):
    """Every digest and size; returns the manifest."""
    path = os.path.join(folder, "manifest.json")
    with open(os.path.join(folder, "COMPLETE"), encoding="ascii") as f:
        test.assertEqual(f.read(), sha256(path) + "\n")
    with open(path, encoding="utf-8") as f:
        m = json.load(f)
    test.assertEqual(set(m), FIELDS)
    test.assertEqual((m["version"], m["kind"]), (2, kind))
    test.assertEqual(sorted([*m["files"], "COMPLETE", "manifest.json"]), below(folder))
    for name, entry in m["files"].items():
        at = os.path.join(folder, name)
        test.assertEqual(entry, {"sha256": sha256(at), "bytes": os.path.getsize(at)}, name)
    return m
