"""Asks an OpenAI-compatible server to continue a text and prints the answer as it arrives, with its timing."""
import json
import sys
import time
import urllib.request

url, prompt = sys.argv[1], sys.argv[2]
body = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
request = urllib.request.Request(
    url + "/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
began = time.monotonic()
first = None
usage = {}
print("    " + prompt, end="", flush=True)
with urllib.request.urlopen(request, timeout=120) as answer:
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit("\nerror: " + event["error"]["message"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice["text"] and first is None:
                first = time.monotonic()
            print(choice["text"].replace("\n", "\n    "), end="", flush=True)
end = time.monotonic()
tokens = usage.get("completion_tokens", 0)
print(f"\n\n    {tokens} tokens; first after {(first - began) * 1000:.0f} ms", end="")
if tokens > 1 and end > first:
    print(f", then {(tokens - 1) / (end - first):.0f} tokens/s", end="")
print()
