"""ModelService: agents ask, the queue intercepts, the trainer answers.

Read `wire` (what goes over the trainer API), `states` (the life of a call), `queue` and `journal`,
then `service`, which joins them; `agent_plane` and `control_plane` translate HTTP to it. To use it
from Python: `rock.modelservice.client.client`.
"""
