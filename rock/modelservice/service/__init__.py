"""What the planes ask for: the agents' side, the trainer's, the rollouts', the operator's."""
