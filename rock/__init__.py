"""rock: real agents in sandboxes ask, one trainer answers, graded token-exact trajectories come out.

Importing this package does nothing and imports nothing heavy. Start in `rock.modelservice.client.client`
(write a trainer), `rock.sandbox` (run commands in isolation) or `rock.rollout` (drive episodes).
"""

__version__ = "0.1.0"
