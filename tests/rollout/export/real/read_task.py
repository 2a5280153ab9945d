"""Harbor's own reading of task directories: name, instruction, limits, and the scripts it would run."""

import json
import sys
from pathlib import Path

from harbor.models.task.task import Task

found = []
for name in json.loads(Path(sys.argv[1]).read_text()):
    task = Task(name)
    system = task.config.environment.os
    found.append(
        [
            task.name,
            task.instruction,
            task.config.agent.timeout_sec,
            task.config.verifier.timeout_sec,
            task.paths.discovered_test_path_for(system).name,
            task.paths.discovered_solve_path_for(system).name,
        ]
    )
print(json.dumps(found))
