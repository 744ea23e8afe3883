"""What happened: trace files become labelled columns, one file at a time."""
