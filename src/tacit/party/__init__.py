"""One party of a training over the network: configuration, session, state on disk."""
