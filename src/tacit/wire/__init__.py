"""Between two parties: transports, the protocol they speak, and private set intersection."""
