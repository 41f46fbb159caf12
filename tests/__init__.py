"""The tests, by question. tests/README.md says where a new one goes."""
