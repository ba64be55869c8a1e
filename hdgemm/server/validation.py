"""Sentences of validation errors: the field, its value, and the values that are allowed."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import nearest_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import BaseModel

Schema = dict[str, Any]
_LONGEST_VALUE: Final = 60
_MOST_ERRORS: Final = 20
#: Names of scikit-learn for inputs of processes.
_ELSEWHERE: Final = {"n_components": "k"}
#: Pydantic's errors that are looked at: it has one for each unknown member and alternative.
_MOST_EXAMINED: Final = 200
#: The most members and items of a body, in all; no request needs a tenth of them.
MOST_VALUES: Final = 1000
#: Bounds beyond this one are limits of float64 or of int64, of which no user thinks.
_LARGEST_BOUND: Final = 1 << 62
#: Its `iterencode` is lazy: a value is encoded as far as it is shown.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=str)


def has_more_values(document: Any, most: int) -> bool:
    """Say whether a JSON document has more than `most` members and items, in time of `most`."""
    count, open_values = 0, [document]
    while open_values:
        value = open_values.pop()
        if not isinstance(value, (dict, list)):
            continue
        count += len(value)
        if count > most:
            return True
        open_values += value.values() if isinstance(value, dict) else value
    return False


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON schema of a body's model."""
    return model.model_json_schema()


def describe_errors(
    errors: Sequence[Mapping[str, Any]], body: Any, schema: Schema
) -> list[dict[str, str]]:
    """Return the first wrong fields, each once, in the order of the errors.

    Parameters
    ----------
    errors
        Pydantic's errors of one request.
    body
        The body that was checked.
    schema
        The schema of the body; empty where a route has none.

    Returns
    -------
    list
        ``where``, the place in the request (``body.inputs.alpha``); ``field``, the name that a form
        has for it (``alpha``); ``what``, the sentence.
    """
    found: dict[tuple[str | int, ...], dict[str, str]] = {}
    for error in errors[:_MOST_EXAMINED]:
        source, *parts = error["loc"]
        if source != "body" or not schema:
            place = tuple(error["loc"])
            # The last part is a position where a parameter is given several times.
            field = _name([part for part in place if isinstance(part, str)][-1:])
            if place not in found:
                found[place] = _entry(place, field, _by_message(field, error))
        else:
            path, part, in_union = _locate(parts, schema, body)
            place = (source, *path)
            own = place[2:] if place[1:2] == ("inputs",) and len(place) > 2 else place[1:]
            field = _name(own) or "body"
            # A value may be long, and be wrong in many ways: only new fields are described.
            if place not in found:
                value = _value_at(body, path) if in_union else error["input"]
                found[place] = _entry(place, field, _by_schema(field, error, value, part, in_union))
        if len(found) == _MOST_ERRORS:
            break
    return list(found.values())


def _entry(place: Sequence[str | int], field: str, what: str) -> dict[str, str]:
    return {"where": _name(place), "field": field, "what": what}


def _name(parts: Sequence[str | int]) -> str:
    """Return the name of a place; names from the request are shortened, as values are."""
    return ".".join(_shortened(str(part)) for part in parts)


def _by_schema(
    field: str, error: Mapping[str, Any], value: Any, schema: Schema, in_union: bool
) -> str:
    kind = error["type"]
    if kind == "extra_forbidden" and not in_union:
        known = schema.get("siblings", ())
        name = _ELSEWHERE.get(field, field)
        near = name if name in known else nearest_name(field, known)
        hint = f": did you mean {near}?" if near else ";"
        return f"{field} is not known here{hint} known are: {', '.join(known)}"
    if kind == "value_error":
        return f"{field} is {show(value)}: it {error['ctx']['error']}"
    if isinstance(value, bytes):  # FastAPI parses bodies of JSON's media types only
        return f"{field} is not sent as JSON: give the header Content-Type: application/json"
    allowed = in_words(schema, schema["$defs"])
    if kind == "missing" and not in_union:
        return f"{field} is missing: it must be {allowed}"
    return f"{field} is {show(value)}: it must be {allowed}"


def _by_message(field: str, error: Mapping[str, Any]) -> str:
    """Return a sentence for parameters of the query, the path and the header."""
    if error["type"] == "missing":
        return f"{field} is missing"
    text = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "it must")
    return f"{field} is {show(error['input'])}: {text.replace('String should', 'it must')}"


def show(value: Any) -> str:
    """Return a value as JSON, shortened."""
    text = ""
    for piece in _ENCODER.iterencode(_head(value)):
        text += piece
        if len(text) > _LONGEST_VALUE:
            break
    return _shortened(text)


def _head(value: Any) -> Any:
    return value[: _LONGEST_VALUE + 1] if isinstance(value, str) else value


def _shortened(text: str) -> str:
    """Return the begin of a text; lone surrogates, which UTF-8 cannot hold, are escaped."""
    text = text[: _LONGEST_VALUE + 1].encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _value_at(body: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def _locate(
    parts: Sequence[str | int], schema: Schema, body: Any
) -> tuple[list[str | int], Schema, bool]:
    """Return the field of an error's location, its schema, and whether it ends in a union.

    Within a union, a location continues with the name of an alternative. The field is then the
    union itself, since none of its alternatives fits, or the only member of the value where one
    alternative has that member.
    """
    definitions = schema.get("$defs", {})
    path: list[str | int] = []
    for place, part in enumerate(parts):
        options = list(_alternatives(schema, definitions))
        if len(options) > 1:
            value = _value_at(body, path)
            for option in options if isinstance(value, dict) else ():
                if len(value) == 1 and list(value) == option.get("required"):
                    member = option["required"][0]
                    inner = {**option["properties"][member], "$defs": definitions}
                    return [*path, member], inner, True
            return path, {**schema, "$defs": definitions}, True
        properties = options[0].get("properties", {})
        path.append(part)
        if isinstance(part, int):
            schema = options[0].get("items", {})
        elif part in properties:
            schema = properties[part]
        else:
            siblings = {"siblings": list(properties), "$defs": definitions}
            return [*path, *parts[place + 1 :]], siblings, False
    return path, {**schema, "$defs": definitions}, False


def _alternatives(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield the schemas that a value may have, null left out."""
    if "$ref" in schema:
        yield from _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return
    for option in schema.get("anyOf") or schema.get("oneOf") or [None]:
        if option is None:
            yield schema
        elif option.get("type") != "null":
            yield from _alternatives(option, definitions)


def in_words(schema: Schema, definitions: Schema) -> str:
    """Return the values that a JSON schema allows, in words."""
    return " or ".join(_one(option, definitions) for option in _alternatives(schema, definitions))


def _one(schema: Schema, definitions: Schema) -> str:
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        *most, last = map(json.dumps, schema["enum"])
        return f"{', '.join(most)} or {last}" if most else last
    if schema.get("type") == "array":
        return _list(schema, definitions)
    if schema.get("type") == "object":
        needed = schema.get("required", ())
        names = ", ".join(f'"{name}": …' for name in needed or schema.get("properties", ()))
        return f"{{{names}}}{'' if needed else ', each optional'}" if names else "an object"
    plain = {"boolean": "true or false", "integer": "a whole number", "number": "a number"}
    word = plain.get(schema.get("type", ""))
    return _text(schema) if word is None else word + _bounds(schema)


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    low = None if low is None or abs(low) >= _LARGEST_BOUND else low
    high = None if high is None or abs(high) >= _LARGEST_BOUND else high
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"


def _list(schema: Schema, definitions: Schema) -> str:
    items = in_words(schema.get("items", {}), definitions)
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    count = f"{least} " if least == most else ""
    like = "".join(f" like {json.dumps(example)}" for example in schema.get("examples", ()))
    return f"a list{like} of {count}items, each {items}"


def _text(schema: Schema) -> str:
    least, longest = schema.get("minLength"), schema.get("maxLength")
    examples = schema.get("examples")
    length = f"at most {longest}" if least is None else f"{least} to {longest}"
    length = length if least != longest else str(longest)
    text = "a text" if longest is None else f"a text of {length} characters"
    if examples:
        return f"{text} like {' or '.join(map(json.dumps, examples))}"
    return f"{text} that matches {schema['pattern']}" if "pattern" in schema else text
