"""The server's calls as a page, from its OpenAPI document.

python tools/api_reference.py            # writes docs/http-api.md
python tools/api_reference.py --check    # exit code 1 if the page is not what the code says
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lessmore
from lessmore.serve.app import make_app
from lessmore.serve.registry import StreamRegistry
from lessmore.serve.service import Service
from lessmore.serve.settings import ServerSettings
from lessmore.serve.store import FolderStore

PAGE = Path(__file__).parents[1] / "docs" / "http-api.md"
_HEAD = """# HTTP API

`tools/api_reference.py` writes this page from the OpenAPI document of [`lessmore serve`](serve.md), which a running
server has at `/openapi.json`, and a test keeps it so. Every call may also answer with an error; [the table of
errors](serve.md#errors) has them all.
"""
Json = dict[str, Any]


def main() -> int:
    """Write the page, or check it."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--check", action="store_true", help="write nothing")
    text = api_page(openapi())
    if not args.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/http-api.md is not what the code says; run python tools/api_reference.py", file=sys.stderr)
        return 1
    return 0


def openapi() -> Json:
    """The document of a server."""
    with tempfile.TemporaryDirectory() as name:
        store, settings = FolderStore(Path(name), fsync=False), ServerSettings()
        registry = StreamRegistry("sqlite://", fsync=False)
        found: Json = make_app(Service(lessmore.load("tiny"), ["a"], settings, registry, store), []).openapi()
        registry.close()
        store.close()
    return found


def api_page(document: Json) -> str:
    """The page of a document."""
    schemas, parts = document["components"]["schemas"], [_HEAD]
    calls = [(path, method, call) for path, item in document["paths"].items() for method, call in item.items()]
    for tag in dict.fromkeys(call["tags"][0] for _, _, call in calls):
        parts.append(f"## {tag[0].upper()}{tag[1:]}\n")
        parts += [_call(path, method, call) for path, method, call in calls if call["tags"][0] == tag]
    parts.append("## Bodies\n")
    parts += [_schema(name, schemas[name]) for name in sorted(_used(calls, schemas))]
    return "\n".join(parts)


def _call(path: str, method: str, call: Json) -> str:
    rows = [f"### `{method.upper()} {path}`\n", (call.get("description") or call["summary"]) + "\n"]
    for one in call.get("parameters", []):
        need = "" if one.get("required") else _default(one["schema"])
        told = f". {one['description'][0].upper()}{one['description'][1:]}" if "description" in one else ""
        rows.append(f"- `{one['name']}` ({one['in']}): {_kind(one['schema'])}{need}{told}")
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        rows.append(f"- body `{kind}`: {_kind(content.get('schema', {}))}")
    for status, answer in call["responses"].items():
        if status not in ("default", "422"):
            kinds = {_kind(content.get("schema", {})) for content in answer.get("content", {}).values()}
            rows.append(f"- {status}: {' or '.join(sorted(kinds)) or 'no body'}")
    return "\n".join(rows) + "\n"


def _default(schema: Json) -> str:
    return f", {schema['default']} if left out" if schema.get("default") not in (None, "") else ", optional"


def _kind(schema: Json) -> str:
    """A schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("format") or schema.get("type") or "anything"
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Json) -> str:
    names = {
        "minimum": "≥ ", "exclusiveMinimum": "> ", "maximum": "≤ ", "exclusiveMaximum": "< ",
        "minLength": "length ≥ ", "maxLength": "length ≤ ", "pattern": "like ",
    }  # fmt: skip
    told = [f"{text}`{schema[name]}`" for name, text in names.items() if name in schema]
    return f" ({', '.join(told)})" if told else ""


def _used(calls: list[tuple[str, str, Json]], schemas: Json) -> set[str]:
    """Names of the schemas that calls lead to; FastAPI's own errors are never sent."""
    found: set[str] = set()
    waiting = [call for _, _, call in calls]
    while waiting:
        for name in set(_references(waiting.pop())) - found - {"HTTPValidationError"}:
            found.add(name)
            waiting.append(schemas[name])
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str) and value["$ref"].startswith("#/components/schemas/"):
            yield value["$ref"].rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _references(one)


def _schema(name: str, schema: Json) -> str:
    rows = [f"### {name}\n", schema.get("description", "") + "\n"]
    for field, about in schema.get("properties", {}).items():
        need = "" if field in schema.get("required", []) else _default(about)
        told = " ".join(about.get("description", "").split())
        rows.append(f"- `{field}`: {_kind(about)}{need}{'. ' + told if told else ''}")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
