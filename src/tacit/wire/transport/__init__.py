"""Transports: frames of bytes from one party to another, in memory or over gRPC."""
