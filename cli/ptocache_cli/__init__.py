"""The command line of ptocache: thin shells over the client."""
