"""In-memory twins of our own ports, for tests."""
