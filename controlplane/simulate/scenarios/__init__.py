"""Scenarios: stories in YAML, played through the real control plane on a virtual clock.

A story says what there is, what happens, and what must have come of it (``docs/scenarios.md``). The same player serves
the scenarios of a policy bundle (``tidegate policy test``) and those of the repository's own tests: a log in memory,
the agents that are installed, the adapter that simulates clusters. Nothing here decides anything.
"""
