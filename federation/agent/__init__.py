"""The agent beside a cluster, and how to make one from a cluster's settings."""

from federation.agent.agent import GRACE_MS, Agent
from federation.agent.opening import GROUP, open_adapter, open_agent

__all__ = ["GRACE_MS", "GROUP", "Agent", "open_adapter", "open_agent"]
