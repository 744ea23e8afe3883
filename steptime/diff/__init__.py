"""Two reports against each other: which parts of the step changed, and in what the runs differ."""
