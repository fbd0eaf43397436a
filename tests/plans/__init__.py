"""Fill tables with many jobs, and read how a database executes our statements."""

from tests.plans.capture import Captured, capture, replay
from tests.plans.effort import effort_of
from tests.plans.explain import Access, Plan, explain
from tests.plans.faults import QUEUE_INDEX, faults_by_key, faults_of_claim
from tests.plans.fill import MIXES, QUEUE, analyze, believes_in_emptiness, fill, forget_statistics, job_name

__all__ = [
    "MIXES",
    "QUEUE",
    "QUEUE_INDEX",
    "Access",
    "Captured",
    "Plan",
    "analyze",
    "believes_in_emptiness",
    "capture",
    "effort_of",
    "explain",
    "faults_by_key",
    "faults_of_claim",
    "fill",
    "forget_statistics",
    "job_name",
    "replay",
]
