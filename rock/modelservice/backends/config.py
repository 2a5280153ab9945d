"""Which backends a service has: names on the command line, or a file that describes them.

    backends:
      engine:    {use: "engine:qwen3", api_base: "http://gpu:8000/v1"}
      yesterday: {use: "replay:runs/first", mode: lenient, fallback: engine}
      bad-day:   {use: "engine:qwen3", api_base: "http://gpu:8000/v1",
                  faults: [{do: "429", every: 5}, {do: cut, probability: 0.02, labels: {suite: chaos}}]}

docs/backends.md explains every field. Policies are made here and entered by `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rock.config import Strict, inherited_environment, kind_of, validated
from rock.errors import ConfigError
from rock.modelservice.backends.recorded import load_recording
from rock.modelservice.client.worker import Policy
from rock.modelservice.policies.faults import Fault, FaultRule, FaultyPolicy
from rock.modelservice.policies.replay import ReplayPolicy
from rock.plain import read_yaml
from rock.secrets import credentials_in, register

QUEUE = "queue"
KINDS = ("litellm", "openai", "engine", "replay")
Seconds = Annotated[float, Field(gt=0)]


class FaultConfig(Strict):
    """One kind of fault, and the calls it hits."""

    do: Fault = Field(description="latency, drop, 429, 500, cut or abort.")
    probability: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Share of the matching calls that it hits; or give `every`."
    )
    every: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="It hits every so manieth matching call."
    )
    labels: dict[str, str] = Field(
        default={}, description="Sessions with all of these labels match; {} is all."
    )
    at_most: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="How often, before it is used up."
    )
    seconds: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="How much later an answer comes, for latency."
    )


class BackendConfig(Strict):
    """One backend."""

    use: str = Field(
        description="litellm:MODEL, openai:MODEL, engine:MODEL (openai with token ids) or replay:PATH."
    )
    api_base: str | None = Field(default=None, description="Address of the model's API.")
    api_key_env: str | None = Field(
        default=None, description="Variable with the API key; null is the provider's own."
    )
    timeout_seconds: Seconds = Field(default=600.0, description="How long one try may take.")
    mode: Literal["strict", "lenient"] = Field(
        default="strict", description="Of replay: whether a question must have been recorded."
    )
    fallback: str | None = Field(
        default=None, description="Of a lenient replay: the backend for what was not recorded."
    )
    faults: list[FaultConfig] = Field(
        default=[], description="Faults on purpose, first hit counts."
    )
    seed: int = Field(default=0, description="Of the faults that have a probability.")


class BackendsFile(Strict):
    backends: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")], BackendConfig] = Field(
        description="By the name that sessions choose."
    )


def policies_of(
    names: Sequence[str] = (), *, api_base: str | None = None, file: Path | None = None
) -> dict[str, Policy]:
    """The policies of a service, by backend name: `names` such as `litellm:gpt-5` stand for themselves,
    `file` describes others. Raises ConfigError naming the backend."""
    configs = {} if file is None else read_backends(file)
    configs |= {name: BackendConfig(use=name, api_base=api_base) for name in names}
    register(*credentials_in(api_base or ""))
    return {name: _with_faults(name, config, configs) for name, config in configs.items()}


def read_backends(file: Path) -> dict[str, BackendConfig]:
    """Raises ConfigError. A recording's relative path is relative to the file."""
    found = validated(BackendsFile, read_yaml(file), source=str(file)).backends
    if QUEUE in found:
        raise ConfigError(f"{file}: backends.{QUEUE}: is the trainer's; take another name")
    for config in found.values():
        register(*credentials_in(config.api_base or ""))
    return {
        name: config.model_copy(update={"use": _beside(file, config.use)})
        for name, config in found.items()
    }


def _beside(file: Path, use: str) -> str:
    kind, colon, path = use.partition(":")
    return f"{kind}{colon}{file.parent / path}" if kind == "replay" else use


def _with_faults(name: str, config: BackendConfig, others: Mapping[str, BackendConfig]) -> Policy:
    policy = _made(name, config, others)
    if not config.faults:
        return policy
    rules = [FaultRule(**rule.model_dump()) for rule in config.faults]
    return FaultyPolicy(policy, rules, seed=config.seed)


def _made(name: str, config: BackendConfig, others: Mapping[str, BackendConfig]) -> Policy:
    kind, _, rest = config.use.partition(":")
    if kind not in KINDS or not rest:
        expected = ", ".join(f"{kind}:…" for kind in KINDS)
        raise ConfigError(
            f"backend {name!r}: expected one of {expected} (`queue` is always there), "
            f"got {kind_of(config.use)}"
        )
    return _MAKERS[kind](name, rest, config, others)


def _litellm(
    name: str, model: str, config: BackendConfig, others: Mapping[str, BackendConfig]
) -> Policy:
    from rock.modelservice.policies.litellm import LitellmPolicy

    return LitellmPolicy(
        model,
        api_base=config.api_base,
        api_key=_api_key(name, config),
        timeout_seconds=config.timeout_seconds,
    )


def _openai(
    name: str, model: str, config: BackendConfig, others: Mapping[str, BackendConfig]
) -> Policy:
    from rock.modelservice.policies.openai import OpenAIPolicy

    required = config.use.startswith("engine:")
    key = _api_key(name, config)
    return OpenAIPolicy(
        model,
        base_url=config.api_base,
        api_key=key or ("none" if required else None),
        tokens="required" if required else "off",
        timeout_seconds=config.timeout_seconds,
    )


def _replay(
    name: str, path: str, config: BackendConfig, others: Mapping[str, BackendConfig]
) -> Policy:
    fallback = None
    if config.fallback is not None:
        other = others.get(config.fallback)
        if other is None or other.use.startswith("replay:") or config.mode == "strict":
            raise ConfigError(
                f"backend {name!r}: fallback: expected, with mode lenient, another backend of the file "
                f"that is no replay, got {config.fallback!r}"
            )
        fallback = _with_faults(config.fallback, other, {})
    return ReplayPolicy(load_recording(Path(path)), mode=config.mode, fallback=fallback)


_MAKERS: dict[str, Callable[[str, str, BackendConfig, Mapping[str, BackendConfig]], Policy]] = {
    "litellm": _litellm,
    "openai": _openai,
    "engine": _openai,
    "replay": _replay,
}


def _api_key(name: str, config: BackendConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = inherited_environment().get(config.api_key_env)
    if not key:
        raise ConfigError(f"backend {name!r}: api_key_env: {config.api_key_env} is not set")
    register(key)
    return key
