"""Composers: which turns enter a learner batch, one file per idea; methods.py has the table of names."""

from divopd.composers.adaptive import DivOPDAdaptive
from divopd.composers.arrival import GateOnly, Vanilla, VanillaWide
from divopd.composers.composer import Candidate, Composer, Decision, Settings, candidate_of
from divopd.composers.rollout_first import DivOPD, DivOPDBase
from divopd.composers.task_first import DivOPDFocus
from divopd.composers.top_scores import TopB

__all__ = [
    "Candidate",
    "Composer",
    "Decision",
    "DivOPD",
    "DivOPDAdaptive",
    "DivOPDBase",
    "DivOPDFocus",
    "GateOnly",
    "Settings",
    "TopB",
    "Vanilla",
    "VanillaWide",
    "candidate_of",
]
