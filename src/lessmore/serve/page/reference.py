"""Every call and body of an OpenAPI document in words, for the page at `/docs` and for the one of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

Json = dict[str, Any]
_CODE, _LINK = re.compile(r"`([^`]*)`"), re.compile(r"\[(\w+)\]\(#(\w+)\)")


class Entry(NamedTuple):
    """A call or a body. Texts are Markdown with `code` and links to bodies, and nothing else."""

    title: str
    text: str
    lines: list[str]


class Section(NamedTuple):
    """Calls of one kind, or all bodies."""

    title: str
    entries: list[Entry]


def sections_of(document: Json) -> list[Section]:
    """What the page says, from top to bottom.

    Args:
        document: An OpenAPI document.
    """
    schemas = document["components"]["schemas"]
    calls = [(path, method, call) for path, item in document["paths"].items() for method, call in item.items()]
    sections = [
        Section(f"{tag[0].upper()}{tag[1:]}", [_call(*one) for one in calls if one[2]["tags"][0] == tag])
        for tag in dict.fromkeys(call["tags"][0] for _, _, call in calls)
    ]
    return [*sections, Section("Bodies", [_schema(name, schemas[name]) for name in sorted(_used(calls, schemas))])]


def reference_html(document: Json) -> str:
    """The body of a page without scripts.

    Args:
        document: An OpenAPI document.
    """
    parts = []
    for title, entries in sections_of(document):
        parts.append(f"<h2>{escape(title)}</h2>")
        for entry in entries:
            lines = "".join(f"<li>{_marked(line)}</li>" for line in entry.lines)
            name = escape(re.sub(r"\W+", "-", entry.title.lower()).strip("-"))
            parts.append(f'<section id="{name}"><h3>{_marked(entry.title)}</h3><p>{_marked(entry.text)}</p>')
            parts.append(f"<ul>{lines}</ul></section>" if lines else "</section>")
    return "\n".join(parts)


def _marked(text: str) -> str:
    """The text as HTML."""
    return _LINK.sub(r'<a href="#\2">\1</a>', _CODE.sub(r"<code>\1</code>", escape(text)))


def _call(path: str, method: str, call: Json) -> Entry:
    rows = []
    for one in call.get("parameters", []):
        need = "" if one.get("required") else _default(one["schema"])
        told = f". {one['description'][0].upper()}{one['description'][1:]}" if "description" in one else ""
        rows.append(f"`{one['name']}` ({one['in']}): {_kind(one['schema'])}{need}{told}")
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        rows.append(f"body `{kind}`: {_kind(content.get('schema', {}))}")
    for status, answer in call["responses"].items():
        if status not in ("default", "422"):
            kinds = {_kind(content.get("schema", {})) for content in answer.get("content", {}).values()}
            rows.append(f"{status}: {' or '.join(sorted(kinds)) or 'no body'}")
    return Entry(f"`{method.upper()} {path}`", call.get("description") or call["summary"], rows)


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


def _schema(name: str, schema: Json) -> Entry:
    rows = []
    for field, about in schema.get("properties", {}).items():
        need = "" if field in schema.get("required", []) else _default(about)
        told = " ".join(about.get("description", "").split())
        rows.append(f"`{field}`: {_kind(about)}{need}{'. ' + told if told else ''}")
    return Entry(name, schema.get("description", ""), rows)
