"""The `rock` command: the composition root. It parses, builds and runs; nothing imports it.

One file per command. Exit codes: 0 done, 1 the work failed, 2 the call or a file was wrong, 130
interrupted. Errors are one message on stderr, without a traceback; `ROCK_LOG_LEVEL=DEBUG` shows it.
"""

from __future__ import annotations

import logging
import sys

from rock.config import read_environment
from rock.errors import ConfigError, RockError


def main() -> None:
    """Entry point of `rock` and of `python -m rock`."""
    from rock.cli.app import app  # typer and rich are loaded only when the command runs

    level = read_environment().log_level
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        app(standalone_mode=True)
    except RockError as exc:
        if level == "DEBUG":
            logging.getLogger(__name__).exception("failed")
        print(f"rock: {exc.message}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
