"""For workers that sample from token ids: exact prompts from leases (`rock[tokenizers]`).

Read `extend` (what is promised, and what `clean`, `realigned` and `fork` mean), then `renderer`.
`stability` says beforehand how a model's template will do. docs/tokens.md shows their use.
"""

from rock.modelservice.render.extend import Cause, Prompt, Status, extend, root
from rock.modelservice.render.renderer import TokenRenderer
from rock.modelservice.render.stability import Finding, Report, check
from rock.modelservice.render.talk import Talk, talk_of
from rock.modelservice.render.tokenizer import ChatTokenizer, load

__all__ = [
    "Cause",
    "ChatTokenizer",
    "Finding",
    "Prompt",
    "Report",
    "Status",
    "Talk",
    "TokenRenderer",
    "check",
    "extend",
    "load",
    "root",
    "talk_of",
]
