"""How much of the time a run ran, what stopped it, and what that cost, from the logs of the run."""
