"""The rollout harness: tasks and groups become graded, token-exact trajectories."""
