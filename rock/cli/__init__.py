"""The `rock` command: the composition root. It parses, builds and runs; nothing imports it.

`app` is the table of commands; each command has a file, or a package together with its like. Exit codes:
0 done, 1 the work failed, 2 the call or a file was wrong, 130 interrupted. Errors are one message on
stderr, without a traceback; `ROCK_LOG_LEVEL=DEBUG` shows it.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast


def main() -> None:
    """Entry point of `rock` and of `python -m rock`."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)


def _main() -> None:
    # Imports take most of a short command's time, and a Ctrl-C may come in them, too.
    from rock.cli.output import open_streams
    from rock.config import read_environment, secret_values
    from rock.errors import ConfigError, RockError
    from rock.secrets import RedactingStream, register

    open_streams()
    register(*secret_values())
    sys.stdout = cast("TextIO", RedactingStream(sys.stdout))
    sys.stderr = cast("TextIO", RedactingStream(sys.stderr))
    try:
        level = read_environment().log_level
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        from rock.cli.app import app

        app(standalone_mode=True)
    except RockError as exc:
        logging.getLogger(__name__).debug("failed", exc_info=exc)
        print(f"rock: {exc.message}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError) else 1)
    except OSError as exc:  # such as a full disk under what is printed
        logging.getLogger(__name__).debug("failed", exc_info=exc)
        print(f"rock: {exc}", file=sys.stderr)
        sys.exit(1)
