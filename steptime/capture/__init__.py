"""Getting a trace from a running job: from outside (`attach`), or from a line in the training script."""
