"""What type checkers see of `rock`; the names are imported when they are first asked for."""

from rock.gym import list as list
from rock.gym import make as make
from rock.gym import register as register

__version__: str
