"""What each fix would buy: the job as a graph of what waits for what, replayed with some of its times changed."""
