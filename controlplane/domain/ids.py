"""Identities. An id is derived from a log position or given by its owner; nothing here draws a random number.

Job ids are integers inside the core (the position of the event that submitted the job: a total order that is the
order of arrival) and are shown to people as ``j123``.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

JobId = NewType("JobId", int)
LeaseId = NewType("LeaseId", str)
QueueName = NewType("QueueName", str)
ClusterName = NewType("ClusterName", str)
NodeName = NewType("NodeName", str)
"""Unique in its cluster; two clusters may well have a node of the same name."""
RequestId = NewType("RequestId", str)
"""One request for cloud capacity: ``c<position of its cycle>.<ordinal in the cycle>``."""


class NodeId(NamedTuple):
    """One node of one cluster."""

    cluster: str
    name: str

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"


_JOB = re.compile(r"j([1-9][0-9]*)")


def job_label(job: JobId) -> str:
    """The id as people see it."""
    return f"j{job}"


def parse_job_label(text: str) -> JobId | None:
    """The inverse of :func:`job_label`; ``None`` if the text is not a job id."""
    found = _JOB.fullmatch(text)
    return JobId(int(found.group(1))) if found else None


def lease_id(job: JobId, attempt: int) -> LeaseId:
    """A lease is named by its job and by the attempt (counted from 1) that it serves."""
    return LeaseId(f"j{job}.{attempt}")


def job_of_lease(lease: LeaseId) -> JobId:
    """The job that a lease serves."""
    return JobId(int(lease[1 : lease.index(".")]))
