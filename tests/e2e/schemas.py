"""Validators for OpenAI's published schema and for the server's own /openapi.json."""

import json
import os
from pathlib import Path

import jsonschema
import referencing
from millrace_server import ROOT

OPENAI = Path(os.environ.get("MILLRACE_SHARED_DATA", ROOT.parent / "shared" / "data")) / "openai" / "openapi.json"
URI = "urn:openapi"


def allow_null(schema):
    return {"anyOf": [relax(schema), {"type": "null"}]} if isinstance(schema, dict) else schema


def relax(node):
    """Allows null for every property and item, as servers and clients do."""
    if isinstance(node, list):
        return [relax(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {name: allow_null(schema) for name, schema in value.items()}
        elif key in ("items", "additionalProperties"):
            out[key] = allow_null(value)
        else:
            out[key] = relax(value)
    return out


def validator_of(document):
    resource = referencing.Resource(document, referencing.jsonschema.DRAFT202012)
    registry = referencing.Registry().with_resource(URI, resource)

    def validate(instance, name):
        schema = {"$ref": f"{URI}#/components/schemas/{name}"}
        jsonschema.Draft202012Validator(schema, registry=registry).validate(instance)

    return validate


def openai_validator():
    return validator_of(relax({"components": json.loads(OPENAI.read_text())["components"]}))


def own_validator(server):
    return validator_of(server.get("/openapi.json").json())
