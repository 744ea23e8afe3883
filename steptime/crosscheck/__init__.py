"""HTA's figures beside steptime's: `result` has the words, `hta` asks HTA, `compare` finds out why they differ."""
