#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cases.json: templates, variables, and what jinja2 renders, set up as transformers does it.

usage: make_golden.py [SmolLM2.gguf] > cases.json
Needs transformers (5.x) and jinja2; gguf if a model file is given, whose own chat template is then among
the cases. The oracle's clock is patched, everything else is the library's.

Each case is [name, template, variables, time, expected, error]: `variables` names a set; `expected` is
null where rendering fails; `error` is the message where the template itself raised it.
"""
import datetime
import json
import sys
import warnings

import jinja2
import transformers.utils.chat_template_utils as oracle

from expressions import EXPRESSIONS, STATEMENTS, VARS
from models import MODEL_TEMPLATES, SCENARIOS

NOW = 1721952000  # 26 July 2024


class FixedClock(datetime.datetime):
    at = NOW

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=cls.at)


oracle.datetime = FixedClock


def render(template, variables, now):
    FixedClock.at = now
    try:
        return oracle._cached_compile_jinja_template(template).render(**variables), None
    except jinja2.exceptions.TemplateError as e:
        # raise_exception raises the base class itself; its message is part of the contract.
        return None, str(e) if type(e) is jinja2.exceptions.TemplateError else None
    except Exception:
        return None, None


def smollm2(path):
    import gguf
    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return bytes(field.parts[field.data[0]]).decode()


def main():
    warnings.simplefilter("ignore")
    sets = {"vars": VARS}
    for name, s in SCENARIOS.items():
        sets[name] = s
    todo = []
    for i, e in enumerate(EXPRESSIONS):
        todo.append((f"expression {i}", "{{ " + e + " }}", "vars", NOW))
    for i, s in enumerate(STATEMENTS):
        now = NOW
        if isinstance(s, tuple):
            s, now = s
        todo.append((f"statement {i}", s, "vars", now))
    templates = dict(MODEL_TEMPLATES)
    if len(sys.argv) > 1:
        templates["SmolLM2"] = smollm2(sys.argv[1])
    for name, t in templates.items():
        for scenario in SCENARIOS:
            todo.append((f"{name}, {scenario}", t, scenario, NOW))
    texts, cases = [], []
    for name, t, s, now in todo:
        expected, error = render(t, sets[s], now)
        if t in texts:
            t = texts.index(t)
        elif name.split(",")[0] in templates:
            texts.append(t)
            t = len(texts) - 1
        cases.append([name, t, s, now, expected, error])
    print("{")
    print('"sets": ' + json.dumps(sets, ensure_ascii=True) + ",")
    print('"templates": ' + json.dumps(texts, ensure_ascii=True) + ",")
    print('"cases": [')
    print(",\n".join(json.dumps(c, ensure_ascii=True) for c in cases))
    print("]}")
    failed = sum(c[4] is None for c in cases)
    print(f"{len(cases)} cases, {failed} of them errors", file=sys.stderr)


if __name__ == "__main__":
    main()
