#!/usr/bin/env python3
"""Rules of the sources that a compiler does not keep: who may include whom, calls that are not used, sizes of files,
functions and lines (clang-format wraps no comment), variables that two engines of one process would share, and names
that the documents give to files.

    python3 tests/source_rules.py [BUILD]     BUILD: a build folder without sanitizers, for the variables
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ["base", "kernels", "model", "serving", "finetune", "gateway", "loadtest"]
INNER = ["serving/paged_kv", "finetune/lora"]  # layers inside a folder

MODEL = {"base", "kernels", "model"}
MAY_INCLUDE = {
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "model": MODEL,
    "serving/paged_kv": MODEL | {"serving/paged_kv"},
    "serving": MODEL | {"serving/paged_kv", "serving"},
    "finetune/lora": MODEL | {"finetune/lora"},
    "finetune": MODEL | {"finetune/lora", "finetune"},
    "loadtest": {"base", "loadtest"},
    "gateway": set(FOLDERS) | set(INNER),
}
# Where serving and training meet; every other file of the gateway names one of the two at most.
BOTH_RIVERS = {"gateway/train_place.h"}
# Headers of libraries, and who may include them.
LIBRARIES = {
    "event2/": ("gateway/", "loadtest/"),
    "llhttp.h": ("gateway/", "loadtest/"),
    "openssl/ssl.h": ("gateway/",),
    "curl/": ("loadtest/",),
    "sqlite3.h": ("base/db",),
    "pcre2.h": ("model/",),
}
# call: who may make it
CALLS = {
    "malloc|calloc|realloc|free|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign": ("base/mem.c",),
    "pthread_(?!sigmask|kill)\\w+": ("base/",),
    "exit|abort|_exit|quick_exit": ("gateway/train.c",),  # the second Ctrl-C
    "sprintf|vsprintf|gets|strtok|system|popen|mktemp|tmpnam|rand|srand|random|localtime|gmtime|ctime|asctime": (),
    "fsync|fdatasync|rename|renameat|unlinkat|rmdir": ("base/", "model/digest.c"),  # a cache of digests
}
FILE_LINES, HEADER_LINES, FUNCTION_LINES, COLUMNS = 620, 310, 72, 100
DATA_TABLES = {"model/template/unicode_data.c"}  # nothing but a table
# Hooks with which tests make allocations and the disk fail.
SHARED_STATE = {"mem.c.o": {"attempts", "fail_all", "fail_at", "failures", "live"}, "diskio.c.o": {"hook"}}

findings = []


def found(path, line, text):
    findings.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def layer(path):
    return next((x for x in INNER if path.startswith(x + "/")), path.split("/")[0])


def sources(folders=FOLDERS):
    for folder in folders:
        for at, below, names in os.walk(os.path.join(ROOT, folder)):
            below[:] = [x for x in below if x not in ("golden", "corpus")]
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(at, name), ROOT)


def without_comments(text):
    keep = lambda m: m.group(0) if m.group(0)[0] in "\"'" else re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', keep, text, flags=re.S)


def check_includes(path, lines):
    rivers = set()
    for n, line in enumerate(lines, 1):
        own = re.match(r'\s*#\s*include "([^"]+/[^"]+)"', line)
        if own:
            to = layer(own[1])
            rivers |= {to.split("/")[0]} & {"serving", "finetune"}
            if to not in MAY_INCLUDE[layer(path)]:
                found(path, n, f"{layer(path)} may not include {own[1]}")
        other = re.match(r"\s*#\s*include <([^>]+)>", line)
        for header, who in LIBRARIES.items():
            if other and other[1].startswith(header) and not path.startswith(who):
                found(path, n, f"<{other[1]}> is for {', '.join(who)} alone")
    if len(rivers) == 2 and path not in BOTH_RIVERS:
        found(path, 0, "includes both serving/ and finetune/")


def check_calls(path, text):
    if "/bench/" in path:
        return
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    for names, who in CALLS.items():
        if who and path.startswith(who):
            continue
        for m in re.finditer(rf"(?<![\w.>])({names})\s*\(", code):
            found(path, code.count("\n", 0, m.start()) + 1, f"{m[1]} is not called here; see tests/source_rules.py")
    for m in re.finditer(r"(?<![\w.>])(open|openat|accept4|eventfd|signalfd|fopen|pipe2)\s*\(([^;]*);", code):
        line = code.count("\n", 0, m.start()) + 1
        mode = text.split("\n")[line - 1 : line + 2]
        if "CLOEXEC" not in m[2] and not (m[1] == "fopen" and re.search(r'"[rwa]\+?e"', "\n".join(mode))):
            found(path, line, f"{m[1]} without CLOEXEC")
    for m in re.finditer(r"(?<![\w.>])(accept|socketpair|pipe|dup|dup2|creat)\s*\(", code):
        found(path, code.count("\n", 0, m.start()) + 1, f"{m[1]} cannot close on exec")


def check_sizes(path, lines):
    most = HEADER_LINES if path.endswith(".h") else FILE_LINES
    if len(lines) > most and path not in DATA_TABLES:
        found(path, 0, f"{len(lines)} lines, {most} are the most: which concept wants a file of its own?")
    start = 0
    for n, line in enumerate(lines, 1):
        if not start and re.match(r".*\) \{$", line) and not line.startswith(("#", "}")):
            start = n
        elif line == "}":
            if start and n - start + 1 > FUNCTION_LINES:
                found(path, start, f"a function of {n - start + 1} lines, {FUNCTION_LINES} are the most")
            start = 0


def check_sources():
    for path in sources():
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            raw = f.read()
        lines = raw.rstrip("\n").split("\n")
        if lines[0] != "// SPDX-License-Identifier: Apache-2.0":
            found(path, 1, "the first line names the licence")
        for n, line in enumerate(lines, 1):
            if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
                found(path, n, "what is not done is no comment")
        check_includes(path, lines)
        check_calls(path, without_comments(raw))
        check_sizes(path, lines)


def check_columns():
    for path in sources([*FOLDERS, "tests"]):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            for n, line in enumerate(f, 1):
                n_columns = len(line.rstrip("\n"))
                if n_columns > COLUMNS:
                    found(path, n, f"{n_columns} columns, {COLUMNS} are the most")


def check_shared_state(build):
    """Symbols in .data and .bss; .data.rel.ro is constant."""
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(build, folder)):
            for name in sorted(x for x in names if x.endswith(".a")):
                archive = os.path.join(at, name)
                out = subprocess.run(["nm", "-A", "-f", "sysv", archive], capture_output=True, text=True, check=True)
                for line in out.stdout.splitlines():
                    part = [x.strip() for x in line.split("|")]
                    if len(part) != 7 or not re.fullmatch(r"\.t?(data|bss)(\.(?!rel\.ro).*)?", part[6]):
                        continue
                    *_, member, symbol = part[0].split(":")
                    if symbol not in SHARED_STATE.get(member, ()):
                        found(os.path.relpath(archive, build), 0, f"{member}: {symbol} is a variable of the process")


def check_documents():
    """Files that ARCHITECTURE.md names exist, and so do the targets of relative links."""
    with open(os.path.join(ROOT, "ARCHITECTURE.md"), encoding="utf-8") as f:
        lines = f.read().split("\n")
    known = {os.path.basename(p) for p in sources()}
    for n, line in enumerate(lines, 1):
        if not line.startswith("| "):
            continue
        for name in re.findall(r"`([\w/*.]+\.[ch])`", line):
            base = os.path.basename(name)
            if "*" in base or base.startswith("_"):
                pattern = re.compile(base.replace(".", r"\.").replace("*", r"\w*") + "$")
                ok = any(pattern.search(x) for x in known)
            elif "/" in name:
                ok = os.path.exists(os.path.join(ROOT, name))
            else:
                ok = base in known
            if not ok:
                found("ARCHITECTURE.md", n, f"there is no {name}")
    for at, folders, names in os.walk(ROOT):
        folders[:] = [x for x in folders if x not in ("build", ".git", "golden", "corpus")]
        for name in (x for x in names if x.endswith(".md")):
            path = os.path.relpath(os.path.join(at, name), ROOT)
            with open(os.path.join(at, name), encoding="utf-8") as f:
                for n, line in enumerate(f, 1):
                    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
                        if "://" not in target and not os.path.exists(os.path.join(at, target)):
                            found(path, n, f"the link to {target} leads nowhere")


check_sources()
check_columns()
check_documents()
if len(sys.argv) > 1:
    check_shared_state(sys.argv[1])
print("\n".join(findings) or "no finding")
sys.exit(1 if findings else 0)
