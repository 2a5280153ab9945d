"""A model's tokenizer and chat template, as its directory on disk publishes them.

Reads `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; runs the template in
jinja's sandbox with what templates of published models expect around them. Needs the extra
`rock[tokenizers]` (tokenizers and jinja2; no torch).
"""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rock.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Object = dict[str, Any]
PROBE = " a  b\n\nc \u00e9"
"""Text that a tokenizer which keeps every space gives back unchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class ChatTokenizer:
    """Text to ids and back, and messages to text. Never written to, so threads may share it."""

    tokenizer: Tokenizer
    templates: Mapping[str, str]
    """By name; `default`, and where a model has one `tool_use`."""
    names: Mapping[str, str]
    """`bos_token`, `eos_token`, … for the template."""
    specials: Mapping[int, str]
    """Control tokens by id: no text of a user becomes one of them."""
    today: datetime.datetime
    """The date that templates write; fixed, or midnight would change every prompt."""
    keeps_space: bool
    """Decoding gives back every space; some older tokenizers do not."""
    _compiled: dict[str, Any] = field(default_factory=dict[str, Any])

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """The ids, and the character of `text` that each begins at."""
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, [start for start, _ in encoded.offsets]

    def starts(self, ids: Sequence[int]) -> list[int] | None:
        """The character of `decode(ids)` that each id begins at.

        None where the text of single ids does not add up to the text of all.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self.tokenizer, number) or "" for number in ids]
        if "".join(pieces) != self.decode(ids):
            return None
        return list(accumulate(map(len, pieces), initial=0))[:-1]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def render(
        self, messages: Sequence[Object], tools: Sequence[Object] | None, *, ask: bool, **more: Any
    ) -> str:
        """The conversation as text; with `ask` up to where the model is to speak.

        Raises `BadRequest` for messages that the template refuses.
        """
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name not in self._compiled:
            self._compiled[name] = compiled(self.templates[name], self.today)
        values = {**self.names, **more}
        values |= {"messages": messages, "tools": tools or None, "add_generation_prompt": ask}
        return rendered(self._compiled[name], values)


def load(directory: Path, *, today: datetime.datetime | None = None) -> ChatTokenizer:
    """The tokenizer in `directory`. `today` is the local date unless given.

    Raises `ConfigError` for a directory without tokenizer or template, and without the extra.
    """
    tokenizer_class = _tokenizer_class()
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ConfigError(f"{directory}: no tokenizer.json; expected the directory of a model")
    try:
        tokenizer = tokenizer_class.from_file(str(path))
    except Exception as exc:  # tokenizers raises bare Exception for every malformed file
        raise ConfigError(f"{path}: not a tokenizer: {exc}") from exc
    config = _read_object(directory / "tokenizer_config.json")
    mapped = _read_object(directory / "special_tokens_map.json")
    specials = {
        number: token.content
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    probe = tokenizer.encode(PROBE, add_special_tokens=False).ids
    return ChatTokenizer(
        tokenizer=tokenizer,
        keeps_space=tokenizer.decode(probe, skip_special_tokens=False) == PROBE,
        templates=_templates(directory, config),
        names=_names({**mapped, **config}),
        specials=specials,
        today=today or datetime.datetime.now().astimezone(),
    )


def _tokenizer_class() -> type[Tokenizer]:
    try:
        importlib.import_module("jinja2")
        from tokenizers import Tokenizer
    except ImportError as exc:
        raise ConfigError(
            "reading a tokenizer needs more packages: pip install 'rock-rollout[tokenizers]'"
        ) from exc
    return Tokenizer


def _read_object(path: Path) -> Object:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected an object")
    return cast("Object", found)


def _templates(directory: Path, config: Object) -> dict[str, str]:
    given = config.get("chat_template")
    if (file := directory / "chat_template.jinja").exists():
        given = file.read_text()
    if isinstance(given, list):
        named = cast("list[dict[str, str]]", given)
        given = {item["name"]: item["template"] for item in named}
    found = {"default": given} if isinstance(given, str) else cast("dict[str, str]", given or {})
    if "default" not in found:
        raise ConfigError(f"{directory}: no chat template; expected chat_template.jinja")
    return found


def _names(config: Object) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in config.items():
        content: Any = cast("Object", value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def compiled(source: str, today: datetime.datetime) -> Any:
    """Raises `ConfigError` for what is no template."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks an assistant's text; for rendering it is nothing."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_same")
            return CallBlock(call, [], [], body).set_lineno(line)

        def _same(self, caller: Any) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    functions = {"raise_exception": _refuse, "strftime_now": today.strftime}
    try:
        return environment.from_string(source, globals=functions)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(f"chat template, line {exc.lineno}: {exc.message}") from exc


def rendered(template: Any, values: Object) -> str:
    import jinja2

    try:
        return template.render(**values)
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as exc:
        # A template is a program: what it does not expect ends in any of these.
        raise BadRequest(f"the chat template refuses these messages: {exc}") from exc


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML that jinja's own filter writes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> str:
    import jinja2

    raise jinja2.TemplateError(message)
