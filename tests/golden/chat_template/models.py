# SPDX-License-Identifier: Apache-2.0
"""Whole chat templates for make_golden.py. They are this project's own, in the formats and with the
constructs that the models' published templates use; SmolLM2's own template is read from its model file.
"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set sys = false %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Turns have to go user/assistant/user/assistant') }}{% endif %}{% if loop.index0 == 0 and sys != false %}{% set text = '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set text = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set turns = messages %}{% for m in turns %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- A leading system message moves into the header, whatever else is there. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- The header: tools of the model's own, dates, tools of the caller. #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Knowledge ends: December 2023\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "These functions can be called, as " }}
    {{- '{"name": the name, "parameters": a dictionary}.' }}
    {{- "\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {#- The first message of the user carries the tools. #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first user message to put the tools into.") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Answer with a call of one of these functions, as " }}
    {{- '{"name": the name, "parameters": a dictionary}.' }}
    {{- "\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, please.") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'Be of help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures stand between <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call is a JSON object in <tool_call></tool_call>:\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nBe of help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles have to alternate: user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("A call's id has nine characters.") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Unknown role: " + message["role"]) }}
    {%- endif %}
{%- endfor %}
"""

THINKING = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- macro tag(name, text) -%}
    <{{ name }}>
{{ text | trim }}
</{{ name }}>
{%- endmacro %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
        {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
            {{- '<|im_start|>' + message.role + '\\n' + tag('think', thoughts) + '\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

SCHEMA = """{%- macro type_of(spec) -%}
  {%- if spec.type == "array" -%}{{ type_of(spec['items']) }}[]
  {%- elif spec.enum -%}{{ spec.enum | map('tojson') | join(' | ') }}
  {%- elif spec.type == "object" -%}{
  {%- for k, v in spec.properties | default({}) | dictsort -%}
    {{ k }}{{ '' if k in spec.required | default([]) else '?' }}: {{ type_of(v) }}{{ ', ' if not loop.last }}
  {%- endfor -%}}
  {%- elif spec.type is iterable and spec.type is not string -%}{{ spec.type | join(' | ') }}
  {%- else -%}{{ spec.type | default('any', true) | lower }}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
namespace functions {
{% for tool in tools %}{% set f = tool.function %}
// {{ f.description | default('', true) | replace('\\n', ' ') | trim }}
type {{ f.name }} = (_: {{ type_of(f.parameters) }}) => any;
{% endfor %}}
{% endif -%}
{%- for role, group in messages | groupby('role') %}
{{ "%-10s %2d" | format(role | title, group | length) }}{{ " first" if loop.first }}
{%- endfor %}
{{ "{} messages, {:.1f} parts".format(messages | length, messages | length / 2) }}
"""

MODEL_TEMPLATES = {
    "Llama 2 style": LLAMA2,
    "Llama 3 style": LLAMA3,
    "Llama 3.1 style": LLAMA31,
    "Qwen 2.5 style": QWEN25,
    "Mistral style": MISTRAL,
    "thinking style": THINKING,
    "schema style": SCHEMA,
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather\nof a \"city\" \u00e9 \U0001F600",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Its name"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer"}},
        "more": {"type": ["string", "null"]}}}}}
TOOL2 = {"type": "function", "function": {"name": "now", "description": None,
                                          "parameters": {"type": "object"}}}
CALL = {"id": "abcdef123", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Z\u00fcrich", "n": 1.5, "b": True, "l": [1], "z": None}}}
BUILTIN = {"type": "function", "function": {"name": "search", "arguments": {"query": "x y"}}}


def turn(role, content, **more):
    return dict(role=role, content=content, **more)


SCENARIOS = {
    "one turn": dict(TOKENS, add_generation_prompt=True, messages=[turn("user", "  Hi <|im_end|>\n")]),
    "no prompt": dict(TOKENS, add_generation_prompt=False, messages=[
        turn("user", "Hi"), turn("assistant", " Hello! ")]),
    "system": dict(TOKENS, add_generation_prompt=True, messages=[
        turn("system", " Be brief. "), turn("user", "\u4f60\u597d"), turn("assistant", "\U0001F44D\U0001F3FD"),
        turn("user", "q?")]),
    "tools": dict(TOKENS, tools=[TOOL, TOOL2], add_generation_prompt=True, messages=[
        turn("system", "S"), turn("user", "Weather?"), turn("assistant", "", tool_calls=[CALL]),
        turn("tool", "20 \"C\"", tool_call_id="abcdef123"), turn("assistant", "It is 20."),
        turn("user", "Thanks")]),
    "tools in system": dict(TOKENS, tools=[TOOL], tools_in_user_message=False, date_string="1 Jan 2000",
                            add_generation_prompt=True, messages=[turn("user", "Weather?")]),
    "builtin tools": dict(TOKENS, builtin_tools=["code_interpreter", "search", "math"],
                          add_generation_prompt=True, messages=[
                              turn("user", "Find x"), turn("assistant", "", tool_calls=[BUILTIN]),
                              turn("ipython", {"hits": [1, 2]})]),
    "two calls": dict(TOKENS, tools=[TOOL], add_generation_prompt=False, messages=[
        turn("user", "Both"), turn("assistant", "ok", tool_calls=[CALL, CALL]),
        turn("tool", "1", tool_call_id="abcdef123"), turn("tool", {"t": 2}, tool_call_id="abcdef123")]),
    "thinking": dict(TOKENS, add_generation_prompt=True, enable_thinking=False, messages=[
        turn("user", "q"), turn("assistant", "<think>\nhm\n</think>\n\nA"), turn("user", "q2"),
        turn("assistant", "B", reasoning_content="\nwhy\n")]),
    "wrong order": dict(TOKENS, add_generation_prompt=True, messages=[
        turn("assistant", "a"), turn("assistant", "b"), turn("oracle", "c")]),
    "no messages": dict(TOKENS, add_generation_prompt=True, messages=[]),
    "no content": dict(TOKENS, add_generation_prompt=True, messages=[{"role": "user"}]),
}
