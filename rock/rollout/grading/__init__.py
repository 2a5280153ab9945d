"""Score what the agent left, trusting nothing that it could have written.

Grading begins when the agent and everything it started are gone. `exam` is one attempt's grading;
`command`, `python` and `judge` are the kinds of graders; `scores` and `junit` read what they say;
`control` finds out whose fault it is if they say nothing; `protection` and `clearing` keep safe what the
agent must not change and put away what it must not see.
"""

from rock.rollout.grading.command import grade_by_command as grade
from rock.rollout.grading.control import Controls
from rock.rollout.grading.exam import Exam, Setting, lay_out
from rock.rollout.grading.judge import SessionBench
from rock.rollout.grading.scores import Grade
from rock.rollout.records.integrity import Integrity

__all__ = ["Controls", "Exam", "Grade", "Integrity", "SessionBench", "Setting", "grade", "lay_out"]
