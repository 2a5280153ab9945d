"""`python -m rock.modelservice`: the service as a process, as `ServiceProcess` starts it.

`rock serve` is the same for people.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rock.config import read_environment, secret_values, validated
from rock.errors import RockError
from rock.modelservice.backends.config import policies_of
from rock.modelservice.hosting.server import run
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.telemetry import logs
from rock.secrets import redact_text, register


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    environment = read_environment()
    register(*secret_values())
    logs.configure(environment.log_level, environment.log_format)
    try:
        config = validated(ServiceConfig, _settings(given), source="command line")
        policies = policies_of(
            given.backend, api_base=environment.api_base, file=config.backends_file
        )
        run(
            config,
            policies=policies,
            agent_fd=given.agent_fd,
            control_fd=given.control_fd,
            parent_pid=given.parent_pid,
        )
    except RockError as exc:
        sys.stderr.write(redact_text(f"error: {exc.message}\n"))
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rock.modelservice")
    parser.add_argument("--state-dir", type=Path, required=True, help="journal, keys, ready.json")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of ServiceConfig, such as agent_port=8000; may be repeated",
    )
    parser.add_argument("--backend", action="append", default=[], help="such as litellm:MODEL")
    parser.add_argument("--agent-fd", type=int, help="an inherited listening socket for agents")
    parser.add_argument("--control-fd", type=int, help="the same for the control plane")
    parser.add_argument("--parent-pid", type=int, help="stop when this process ends")
    return parser


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    pairs = [item.partition("=") for item in given.set]
    return {"state_dir": given.state_dir, **{name: value for name, _, value in pairs}}


if __name__ == "__main__":
    raise SystemExit(main())
