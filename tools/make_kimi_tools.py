"""Writes tests/text/kimi_tools.json: tools as Kimi K2.5's own tokenizer declares them in TypeScript.

usage: make_kimi_tools.py TOOL_DECLARATION_TS_PY OUTPUT   (the file of the model's repository)
"""

import importlib.util
import json
import random
import sys
from pathlib import Path

CASES = 60
NAMES = ["zeta", "alpha", "Mid", "é", "b_2"]
TEXTS = ["A place", "two\n\nlines", "", "漢字 \"quoted\"", "  space"]


class Draw:
    """Draws tools, some of them with schemas that have no form in TypeScript."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, values):
        return self.random.choice(values)

    def described(self, schema):
        if self.chance(0.5):
            schema["description"] = self.pick(TEXTS)
        return schema

    def scalar(self):
        kind = self.pick(["string", "number", "integer", "boolean", "null"])
        schema = {"type": kind}
        bounds = {"string": {"minLength": 1, "maxLength": 9, "pattern": "^a\"b$"},
                  "number": {"minimum": -0.5, "maximum": 1e20}, "integer": {"maximum": 7, "minimum": 0}}
        for key, value in bounds.get(kind, {"minLength": 3}).items():
            if self.chance(0.3):
                schema[key] = value
        if self.chance(0.3):
            schema["default"] = self.pick(["a \"b\" é", 1, 2.5, True, False, None, [1, "x"], {"k": None}])
        return self.described(schema)

    def schema(self, depth, references):
        kind = self.pick(["scalar", "scalar", "enum", "types", "any", "array", "object", "anyOf", "reference", "odd"])
        if kind == "enum":
            values = self.pick([["a", "b \"c\""], [1, 2], [True, None], [1.5, "x"], ["a", None]])
            schema = {"enum": values}
            if self.chance(0.6):
                schema["type"] = self.pick(["string", "integer", "number", "boolean", ["string", "null"], ["number"]])
            return self.described(schema)
        if kind == "types":
            return self.described({"type": self.pick([["string", "null"], ["array", "object", "integer"], ["boolean"]])})
        if kind == "any":
            return self.pick([{}, True, False])
        if kind == "reference" and references:
            return self.described({"$ref": self.pick(references)})
        if kind == "odd" and self.chance(0.15):
            return self.pick([{"description": "no type"}, {"$ref": "#/$defs/absent"}, {"type": ["string", "date"]},
                              {"type": "string", "enum": [1]}, {"oneOf": []}])
        if depth > 0 and kind == "array":
            schema = {"type": "array"}
            if self.chance(0.8):
                schema["items"] = self.schema(depth - 1, references)
            if self.chance(0.3):
                schema["maxItems"] = 4
            return self.described(schema)
        if depth > 0 and kind == "object":
            return self.described(self.object(depth - 1, references))
        if depth > 0 and kind == "anyOf":
            return self.described({"anyOf": [self.schema(depth - 1, references) for _ in range(2)]})
        return self.scalar()

    def object(self, depth, references):
        names = self.random.sample(NAMES, self.random.randrange(0, 4))
        schema = {"type": "object"}
        if names or self.chance(0.5):
            schema["properties"] = {name: self.schema(depth, references) for name in names}
            schema["required"] = [name for name in names if self.chance(0.5)]
        if self.chance(0.4):
            schema["additionalProperties"] = self.pick([True, False, {}, {"type": "string", "description": "d"}])
        return schema

    def tool(self):
        function = {"name": self.pick(["get_a", "run.b", "c-d"])}
        if self.chance(0.7):
            function["description"] = self.pick(TEXTS)
        if self.chance(0.9):
            references = self.pick([[], ["#"], ["#/$defs/node"], ["#", "#/$defs/node", "#/$defs/a"]])
            parameters = self.object(2, references)
            defined = {name.split("/")[-1] for name in references if name != "#"}
            if defined:
                parameters["$defs"] = {name: self.described(self.object(1, references)) for name in sorted(defined)}
            function["parameters"] = parameters
        return {"type": "function" if self.chance(0.95) else "plugin", "function": function}


def sorted_by_name(value):
    if isinstance(value, dict):
        return {key: sorted_by_name(value[key]) for key in sorted(value)}
    return [sorted_by_name(each) for each in value] if isinstance(value, list) else value


def main(source, output):
    spec = importlib.util.spec_from_file_location("tool_declaration_ts", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    draw = Draw(20261127)
    cases = []
    for _ in range(CASES):
        tools = [draw.tool() for _ in range(draw.pick([1, 1, 2]))]
        try:
            text = module.encode_tools_to_typescript_style(sorted_by_name(tools))
        except (ValueError, KeyError, TypeError, AttributeError):
            text = None
        cases.append({"tools": tools, "typescript": text})
    Path(output).write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
