"""Fakes and live services for tests of code that uses rock.

`running_service` is a real ModelService on free ports, `fake_openai_server` a hosted model that
plays a script, `ScriptedPolicy` a worker that does; `FakeClock` is time moved by hand.
"""

from rock.modelservice.policies.scripted import ScriptedPolicy, tool_call
from rock.testing.clock import FakeClock
from rock.testing.fake_engine import fake_openai_server
from rock.testing.service import running_service

__all__ = ["FakeClock", "ScriptedPolicy", "fake_openai_server", "running_service", "tool_call"]
