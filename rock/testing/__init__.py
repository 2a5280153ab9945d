"""Fakes and live services for tests of code that uses rock.

`rock.testing.service` has a running ModelService and a fake hosted model; `ScriptedPolicy` answers
calls from a script.
"""

from rock.modelservice.policies.scripted import ScriptedPolicy, tool_call

__all__ = ["ScriptedPolicy", "tool_call"]
