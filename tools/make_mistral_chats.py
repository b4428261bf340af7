"""Writes tests/text/mistral_chats.json: conversations as mistral_common 1.13.1 renders them for each version of tekken.json.

usage: make_mistral_chats.py TEKKEN_JSON OUTPUT   (the file without special tokens that mistral_common comes with)
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

THINK = ["[THINK]", "[/THINK]"]
MORE_TOKENS = {3: [], 7: [], 11: ["[ARGS]", "[CALL_ID]"], 13: ["[ARGS]", "[CALL_ID]", *THINK],
               15: ["[ARGS]", "[CALL_ID]", *THINK, "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"]}
WORDS = ["Hello", "wörld", "  two  spaces ", "line\nbreak", "漢字", '{"a": 1}', "tail  ", "🙂", "'s", "1234"]
CHATS_PER_VERSION = 12
EFFORTS = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
RESULTS = ['{"z":[1,2.50,"é"],"a":null}', " [ 1 ] ", "null", "7", "", '"text"', "{broken"]


def write_tekken(source, version, folder):
    """Writes the vocabulary with the special tokens of another version."""
    content = json.loads(Path(source).read_text())
    content.pop("image", None)
    content["config"]["version"] = f"v{version}"
    if version == 15:
        content["model_settings_builder"] = {"reasoning_effort": EFFORTS}
    names = [str(token["token_str"]) for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS] + MORE_TOKENS[version]
    content["special_tokens"] = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
    path = folder / "tekken.json"
    path.write_text(json.dumps(content))
    return path


class Draw:
    """Draws conversations."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        return " ".join(self.random.choices(WORDS, k=self.random.randrange(1, 6)))

    def chance(self, probability):
        return self.random.random() < probability

    def tool(self, name):
        function = {"name": name, "parameters": {"type": "object", "properties": {"z": {"description": "é"}, "a": {}}}}
        if self.chance(0.6):
            function["description"] = self.text()
        if self.chance(0.3):
            function["strict"] = True
        return {"type": "function", "function": function}

    def result(self):
        return self.text() if self.chance(0.5) else self.random.choice(RESULTS)

    def call_and_results(self, has_text):
        ids = ["".join(self.random.choices("abcDEF012", k=9)) for _ in range(self.random.choice([1, 1, 2]))]
        calls = [{"id": each, "type": "function",
                  "function": {"name": "get_a", "arguments": json.dumps({"z": self.text(), "a": [1, None]})}}
                 for each in ids]
        assistant = {"role": "assistant", "content": self.text() if has_text and self.chance(0.4) else None,
                     "tool_calls": calls}
        self.random.shuffle(ids)
        return [assistant] + [{"role": "tool", "tool_call_id": each, "content": self.result()} for each in ids]

    def messages(self, thinks, has_text):
        messages = [{"role": "system", "content": self.text()}] if self.chance(0.6) else []
        for _ in range(self.random.randrange(1, 4)):
            for _ in range(self.random.choice([1, 1, 2])):
                messages.append({"role": "user", "content": self.text()})
            if self.chance(0.6):
                messages += self.call_and_results(has_text)
            messages.append({"role": "assistant", "content": self.text()})
            if thinks and self.chance(0.6):
                messages[-1]["reasoning_content"] = self.text()
        return messages + [{"role": "user", "content": self.text()}]


def main(source, output):
    draw = Draw(20261127)
    cases = []
    for version in MORE_TOKENS:
        with tempfile.TemporaryDirectory() as folder:
            path = write_tekken(source, version, Path(folder))
            tokenizer = MistralTokenizer.from_file(str(path), mode=ValidationMode.test)
        for _ in range(CHATS_PER_VERSION):
            messages = draw.messages(version >= 13, version > 3)
            tools = [draw.tool("get_a"), draw.tool("get_b")]
            effort = draw.random.choice([None, "none", "high"]) if version == 15 else None
            request = ChatCompletionRequest.from_openai(messages=messages, tools=tools, reasoning_effort=effort)
            text = tokenizer.encode_chat_completion(request).text
            cases.append({"version": version, "messages": messages, "tools": tools, "text": text})
            if effort:
                cases[-1]["effort"] = effort
    Path(output).write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
